"""Every knob, once: defaults < YAML file < environment (``KVWATCH_…``, nested with ``__``) < flags.

Unknown keys are errors, durations are written as Prometheus writes them, and all faults are reported together.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

DEFAULT_TARGET: Final = "http://127.0.0.1:8000/metrics"
_HIGHEST_PORT: Final = 65535
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(value: object) -> float:
    """Seconds of a Prometheus duration such as ``15s``, ``1m30s`` or ``500ms``; a bare number is seconds.

    Raises `ValueError` naming what was written.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r} is not a duration: write it as 15s, 1m30s or 500ms")
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write it as 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _comma_separated(value: object) -> object:
    """A string from the environment or a flag is a comma-separated list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _string_as_target(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


def _check_url(url: str, schemes: tuple[str, ...]) -> str:
    """The URL itself if kvwatch can use it; raises `ValueError` otherwise."""
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(
            f"{url!r} is not a URL kvwatch can use: it must start with {' or '.join(s + '://' for s in schemes)} and name a host"
        )
    if parts.username or parts.password:
        raise ValueError("credentials do not belong in a URL: use bearer_token_file or basic_auth")
    _ = parts.port  # raises ValueError for a port that is none
    return url


Duration = Annotated[float, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]
CommaSeparated = Annotated[list[str], NoDecode, BeforeValidator(_comma_separated)]


class Section(BaseModel):
    """A group of knobs; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class KnownConfigSettings(Section):
    """What /metrics does not say and an operator knows; used when given, inferred otherwise."""

    max_num_seqs: Annotated[int | None, Field(gt=0)] = None
    max_num_batched_tokens: Annotated[int | None, Field(gt=0)] = None
    max_model_len: Annotated[int | None, Field(gt=0)] = None
    kv_cache_tokens: Annotated[int | None, Field(gt=0)] = None
    vllm_version: str | None = None


class TargetSettings(KnownConfigSettings):
    """One vLLM /metrics URL: ``http(s)://host:port/metrics``, or ``dns+http://name:port/metrics`` for every address of a name."""

    url: str
    name: str = ""
    """Value of the ``target`` label; the URL when empty."""

    @field_validator("url")
    @classmethod
    def _url_is_usable(cls, url: str) -> str:
        return _check_url(url, ("http", "https", "dns+http", "dns+https"))

    @model_validator(mode="after")
    def _name_defaults_to_url(self) -> Self:
        if not self.name:
            object.__setattr__(self, "name", self.url)
        return self


class PollSettings(Section):
    """How targets are asked."""

    interval: PositiveDuration = 5.0
    timeout: PositiveDuration | None = None
    """Total deadline of one scrape; the smaller of 4s and the interval when not given."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 16 * 1024 * 1024
    ca_file: Path | None = None
    bearer_token_file: Path | None = None
    trust_environment: bool = False
    """Honour HTTP_PROXY and ~/.netrc for targets."""

    @property
    def deadline(self) -> float:
        """Seconds one scrape may take in all."""
        return self.timeout if self.timeout is not None else min(4.0, self.interval)


class WindowSettings(Section):
    """Over how long the numbers are judged."""

    fast: PositiveDuration = 30.0
    slow: PositiveDuration = 120.0

    @model_validator(mode="after")
    def _fast_is_shorter(self) -> Self:
        if self.fast >= self.slow:
            raise ValueError("window.fast must be shorter than window.slow")
        return self


class ThresholdSettings(Section):
    """Policy: what counts as too much."""

    kv_watermark: Ratio = 0.90
    storm_ratio: Ratio = 0.10
    storm_min_preemptions: Annotated[int, Field(ge=1)] = 5
    stall: PositiveDuration = 10.0
    silence: PositiveDuration = 60.0


class ObjectiveSettings(Section):
    """Latency objectives (95th percentile over the slow window); an alert exists only where one is set."""

    time_to_first_token: PositiveDuration | None = None
    inter_token_latency: PositiveDuration | None = None
    e2e_request_latency: PositiveDuration | None = None


class DiscoverySettings(Section):
    """Targets that come and go."""

    files: CommaSeparated = []
    """Globs of files in Prometheus' file_sd format (JSON or YAML)."""
    refresh: PositiveDuration = 30.0
    dns_server: str | None = None
    """``host:port`` of the resolver for dns+http targets; the system's when not given."""


class BasicAuthSettings(Section):
    """HTTP basic authentication; the password stays in its file."""

    username: str
    password_file: Path


class AlertmanagerSettings(Section):
    """Direct push to Alertmanager, for hosts without Prometheus. Off while no URL is given."""

    urls: CommaSeparated = []
    labels: dict[str, str] = {}
    """Added to every alert: namespace, pod, instance, which Prometheus would have added."""
    external_url: str | None = None
    """Where a person reaches kvwatch's page; becomes generatorURL."""
    timeout: PositiveDuration = 10.0
    resend: PositiveDuration = 60.0
    basic_auth: BasicAuthSettings | None = None
    bearer_token_file: Path | None = None
    ca_file: Path | None = None

    @field_validator("urls")
    @classmethod
    def _urls_are_usable(cls, urls: list[str]) -> list[str]:
        return [_check_url(url, ("http", "https")) for url in urls]


class GpuSettings(Section):
    """An optional GPU exporter (DCGM) beside vLLM."""

    url: str | None = None
    labels: dict[str, str] = {}
    """Only series with these label values count, e.g. ``{pod: vllm-0}``."""

    @field_validator("url")
    @classmethod
    def _url_is_usable(cls, url: str | None) -> str | None:
        return url if url is None else _check_url(url, ("http", "https"))


class WebSettings(Section):
    """The HTTP front."""

    listen_address: str = "0.0.0.0:20058"
    cert_file: Path | None = None
    key_file: Path | None = None

    @field_validator("listen_address")
    @classmethod
    def _listen_address_is_host_port(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if not port.isdigit() or int(port) > _HIGHEST_PORT or (":" in host and not host.startswith("[")):
            raise ValueError(f"{address!r} is not a listen address: write host:port, :port or [ipv6]:port")
        return address

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        return self

    @property
    def host_port(self) -> tuple[str, int]:
        """What to bind: host (empty host means every address) and port."""
        host, _, port = self.listen_address.rpartition(":")
        return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - ":20058" means every address, as in Prometheus


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """``auto``: console on a terminal, JSON lines elsewhere."""


class Settings(BaseSettings):
    """Everything the daemon can be told."""

    model_config = SettingsConfigDict(
        env_prefix="KVWATCH_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        nested_model_default_partial_update=True,
    )

    targets: Annotated[
        list[Annotated[TargetSettings, BeforeValidator(_string_as_target)]],
        NoDecode,
        BeforeValidator(_comma_separated),
    ] = Field(default_factory=list)
    discovery: DiscoverySettings = DiscoverySettings()
    poll: PollSettings = PollSettings()
    window: WindowSettings = WindowSettings()
    thresholds: ThresholdSettings = ThresholdSettings()
    objectives: ObjectiveSettings = ObjectiveSettings()
    vllm: KnownConfigSettings = KnownConfigSettings()
    alertmanager: AlertmanagerSettings = AlertmanagerSettings()
    gpu: GpuSettings = GpuSettings()
    web: WebSettings = WebSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _zero_configuration(cls, data: Any) -> Any:
        """Without targets and without discovery, watch the vLLM beside us."""
        if isinstance(data, dict) and not data.get("targets") and not (data.get("discovery") or {}):
            data = {**data, "targets": [DEFAULT_TARGET]}
        return data

    @model_validator(mode="after")
    def _target_names_are_unique(self) -> Self:
        names = [target.name for target in self.targets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two targets of one name: {', '.join(twice)}")
        return self
