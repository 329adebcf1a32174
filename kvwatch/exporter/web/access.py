"""Who may talk to the HTTP front: TLS and basic authentication, from the settings or from a file in the exporter-toolkit's form.

The file (``--web.config.file``) is the one Prometheus and its exporters take; it and the certificates are read again when they change::

    tls_server_config:
      cert_file: server.crt          paths are relative to the file
      key_file: server.key
      client_auth_type: NoClientCert | RequireAndVerifyClientCert
      client_ca_file: ca.crt
      min_version: TLS12 | TLS13
    basic_auth_users:
      prometheus: $2y$10$…           bcrypt, as `htpasswd -nBC 10 "" | tr -d ':'` writes it
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self

import structlog
from pydantic import Field, ValidationError, model_validator

from kvwatch.config.policy import Section
from kvwatch.config.web import WebSettings
from kvwatch.config.yaml_file import parse_yaml, read_text
from kvwatch.errors import ConfigError
from kvwatch.exporter.web.tls import Certificate, TlsFiles, modified
from kvwatch.text import one_line

_log = structlog.get_logger(__name__)

_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


class _Tls(Section):
    cert_file: Path
    key_file: Path
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: Path | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    @model_validator(mode="after")
    def _authority_is_named(self) -> Self:
        if (self.client_auth_type == "RequireAndVerifyClientCert") != (self.client_ca_file is not None):
            raise ValueError("client_auth_type RequireAndVerifyClientCert and client_ca_file go together")
        return self


class _WebConfig(Section):
    tls_server_config: _Tls | None = None
    basic_auth_users: dict[str, Annotated[str, Field(pattern=r"^\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}$")]] = Field(default={})


class Access:
    """What holds for the next connection and the next request. Raises `ConfigError` at first; later the last good word stays."""

    def __init__(self, web: WebSettings) -> None:
        self._file = web.config.file
        self._certificate: Certificate | None = None
        self.users: Mapping[str, str] = MappingProxyType({})
        """Name -> bcrypt hash; empty where nobody has to say who they are."""
        if self._file is not None:
            self._changed = modified(self._file)
            self._read(self._file)
        elif web.cert_file is not None and web.key_file is not None:
            self._certificate = Certificate(TlsFiles(web.cert_file, web.key_file))

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; ``None`` for plain HTTP."""
        if self._file is not None and (changed := modified(self._file)) != self._changed:
            self._changed = changed
            try:
                self._read(self._file)
                _log.info("http.access_reloaded", file=str(self._file))
            except ConfigError as error:
                _log.error("http.access_unusable", detail=str(error), kept="what it said before")
        return None if self._certificate is None else self._certificate.context()

    def _read(self, file: Path) -> None:
        try:
            found = _WebConfig.model_validate(parse_yaml(read_text(file)) or {})
        except ValidationError as invalid:
            lines = [f"{file}: {one_line('.'.join(map(str, error['loc'])))}: {one_line(error['msg'])}" for error in invalid.errors()]
            raise ConfigError(lines) from None
        except ValueError as error:
            raise ConfigError([f"{file}: {error}"]) from error
        tls = found.tls_server_config
        self._certificate = None if tls is None else Certificate(_files(tls, file.parent))
        self.users = MappingProxyType(found.basic_auth_users)


def _files(tls: _Tls, folder: Path) -> TlsFiles:
    authority = None if tls.client_ca_file is None else folder / tls.client_ca_file
    return TlsFiles(folder / tls.cert_file, folder / tls.key_file, authority, _VERSIONS[tls.min_version])
