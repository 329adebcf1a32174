"""The settings of the HTTP front."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pydantic import field_validator, model_validator

from kvwatch.config.policy import Section

_HIGHEST_PORT: Final = 65535


class WebConfigSettings(Section):
    """TLS and basic authentication as Prometheus' exporters take them."""

    file: Path | None = None
    """File in the exporter-toolkit's form (tls_server_config, basic_auth_users); read again when it changes."""


class WebSettings(Section):
    """The HTTP front."""

    listen_address: str = "0.0.0.0:20058"
    """host:port, :port or [ipv6]:port of the HTTP front; port 0 takes a free one."""
    cert_file: Path | None = None
    """PEM certificate chain: the HTTP front speaks TLS only."""
    key_file: Path | None = None
    """Private key of the certificate."""
    config: WebConfigSettings = WebConfigSettings()
    """TLS and basic authentication from a file."""
    enable_lifecycle: bool = False
    """Let a POST to /-/reload read the configuration again, as SIGHUP does."""

    @field_validator("listen_address")
    @classmethod
    def _listen_address_is_host_port(cls, address: str) -> str:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > _HIGHEST_PORT or (":" in host and not host.startswith("[")):
            raise ValueError(f"{address!r} is not a listen address: write host:port, :port or [ipv6]:port")
        return address

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if self.cert_file is not None and self.config.file is not None:
            raise ValueError("cert_file and config.file exclude one another")
        return self

    @property
    def host_port(self) -> tuple[str, int]:
        """What to bind: host (empty host means every address) and port."""
        host, _, port = self.listen_address.rpartition(":")
        return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - ":20058" means every address, as in Prometheus
