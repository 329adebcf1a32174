"""Every knob, once: defaults < YAML file < environment (``KVWATCH_…``, nested with ``__``) < flags.

Unknown keys are errors, durations are written as Prometheus writes them, and all errors are reported together.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kvwatch.config.policy import KnownConfig, Objectives, Policy, Section, Thresholds, Windows
from kvwatch.config.values import (
    CommaSeparated,
    Labels,
    PositiveDuration,
    check_labels,
    check_url,
    comma_separated,
    metrics_url,
    parse_shard,
)
from kvwatch.config.web import WebSettings

DEFAULT_TARGET: Final = "http://127.0.0.1:8000/metrics"


def _string_as_target(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class TargetSettings(KnownConfig):
    """One vLLM /metrics URL: ``http(s)://host:port/metrics``, or ``dns+http://name:port/metrics`` for every address of a name."""

    url: str
    """Where the metrics are."""
    name: str = ""
    """Value of the ``target`` label; the URL when empty."""
    labels: Labels = Field(default={})
    """More labels of this target's series and alerts, such as namespace and pod."""

    @field_validator("url")
    @classmethod
    def _url_is_usable(cls, url: str) -> str:
        return metrics_url(url, ("http", "https", "dns+http", "dns+https"))

    @field_validator("labels")
    @classmethod
    def _labels_are_free(cls, labels: dict[str, str]) -> dict[str, str]:
        return check_labels(labels)

    @model_validator(mode="after")
    def _name_defaults_to_url(self) -> Self:
        if not self.name:
            object.__setattr__(self, "name", self.url)
        return self


class PollSettings(Section):
    """How targets are asked."""

    interval: Annotated[PositiveDuration, Field(ge=0.1)] = 5.0
    """Time between two scrapes of a target; vLLM answers them on the event loop that serves requests."""
    timeout: PositiveDuration | None = None
    """Total deadline of one scrape, not longer than the interval; the smaller of 4s and the interval when not given."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 16 * 1024 * 1024
    """A larger body, unpacked, is refused."""
    ca_file: Path | None = None
    """Certificates to verify https targets with; the system's when not given."""
    bearer_token_file: Path | None = None
    """Holds the token sent to targets; read for each scrape."""
    trust_environment: bool = False
    """Honour HTTP_PROXY and ~/.netrc for targets."""

    @model_validator(mode="after")
    def _timeout_fits(self) -> Self:
        if self.timeout is not None and self.timeout > self.interval:
            raise ValueError("poll.timeout must not be longer than poll.interval")
        return self

    @property
    def deadline(self) -> float:
        """Seconds one scrape may take in all."""
        return self.timeout if self.timeout is not None else min(4.0, self.interval)


class DiscoverySettings(Section):
    """Targets that come and go."""

    files: CommaSeparated = Field(default=[])
    """Globs of files in Prometheus' file_sd format (JSON or YAML)."""
    refresh: PositiveDuration = 30.0
    """How often files and names are looked at again."""
    dns_server: str | None = None
    """``host:port`` of the resolver for dns+http targets; the system's when not given."""


class BasicAuthSettings(Section):
    """HTTP basic authentication; the password stays in its file."""

    username: str
    """Who kvwatch is to Alertmanager."""
    password_file: Path
    """Holds the password; read for each push."""


class AlertmanagerSettings(Section):
    """Direct push to Alertmanager, for hosts without Prometheus. Off while no URL is given."""

    urls: CommaSeparated = Field(default=[])
    """Alertmanagers; each gets every alert."""
    labels: Labels = Field(default={})
    """Added to every alert: namespace, pod, instance, which Prometheus would have added."""
    external_url: str | None = None
    """Where a person reaches kvwatch's page: the alerts link to it and to its runbook. HOST:PORT of this kvwatch when not given."""
    timeout: PositiveDuration = 10.0
    """How long a push may take in all, from looking up the name to the last byte of the answer."""
    resend: PositiveDuration = 60.0
    """How often a firing alert is sent again."""
    basic_auth: BasicAuthSettings | None = None
    """Credentials for Alertmanager."""
    bearer_token_file: Path | None = None
    """Holds the token sent to Alertmanager; read for each push."""
    ca_file: Path | None = None
    """Certificates to verify Alertmanager with; the system's when not given."""

    @field_validator("urls")
    @classmethod
    def _urls_are_usable(cls, urls: list[str]) -> list[str]:
        return [check_url(url, ("http", "https")) for url in urls]

    @field_validator("external_url")
    @classmethod
    def _external_url_is_usable(cls, url: str | None) -> str | None:
        return url if url is None else check_url(url, ("http", "https"))

    @field_validator("labels")
    @classmethod
    def _labels_have_names(cls, labels: dict[str, str]) -> dict[str, str]:
        """Alertmanager refuses an alert with any other name in it."""
        for name in labels:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
                raise ValueError(f"{name!r} is not a label name: letters, digits and underscores, no digit first")
        return labels

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> Self:
        if self.basic_auth is not None and self.bearer_token_file is not None:
            raise ValueError("basic_auth and bearer_token_file exclude one another")
        return self


class GpuSettings(Section):
    """An optional GPU exporter (DCGM) beside vLLM."""

    url: str | None = None
    """/metrics URL of the GPU exporter; none is asked when not given."""
    labels: Labels = Field(default={})
    """Only series with these label values count, e.g. ``{pod: vllm-0}``."""

    @field_validator("url")
    @classmethod
    def _url_is_usable(cls, url: str | None) -> str | None:
        return url if url is None else check_url(url, ("http", "https"))


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe event that is logged; steady states are debug."""
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
        use_attribute_docstrings=True,
    )

    targets: Annotated[
        list[Annotated[TargetSettings, BeforeValidator(_string_as_target)]],
        NoDecode,
        BeforeValidator(comma_separated),
    ] = Field(default_factory=list)
    """What is watched."""
    shard: str = "0/1"
    """``i/n``: of all targets, watch part i of n, counted from 0. Every kvwatch of the fleet is given the same targets and the same n."""
    discovery: DiscoverySettings = DiscoverySettings()
    poll: PollSettings = PollSettings()
    window: Windows = Windows()
    thresholds: Thresholds = Thresholds()
    objectives: Objectives = Objectives()
    vllm: KnownConfig = KnownConfig()
    baseline: Path | None = None
    """A file of ``kvwatch snapshot``; every engine of its model is compared with it, ten minutes at a time."""
    alertmanager: AlertmanagerSettings = AlertmanagerSettings()
    gpu: GpuSettings = GpuSettings()
    web: WebSettings = WebSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _zero_configuration(cls, data: Any) -> Any:
        """Without targets and without discovery, watch `DEFAULT_TARGET`."""
        if isinstance(data, dict) and not data.get("targets") and not _has_files(data.get("discovery")):
            data = {**data, "targets": [DEFAULT_TARGET]}
        return data

    @field_validator("shard")
    @classmethod
    def _shard_is_one(cls, shard: str) -> str:
        parse_shard(shard)
        return shard

    # Of the field, not of the whole: pydantic looks at the whole only when every other setting is right.
    @field_validator("targets")
    @classmethod
    def _target_names_are_unique(cls, targets: list[TargetSettings]) -> list[TargetSettings]:
        names = [target.name for target in targets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two targets of one name: {', '.join(twice)}")
        return targets

    @property
    def policy(self) -> Policy:
        """The part of the settings by which a scrape is judged."""
        return Policy(window=self.window, thresholds=self.thresholds, objectives=self.objectives)

    def known_of(self, target: KnownConfig | None) -> KnownConfig:
        """What the operator knows of a target: what stands at the target itself, else what holds for all of them."""
        return self.vllm if target is None else KnownConfig.first_of(target, self.vllm)


def _has_files(discovery: object) -> bool:
    """Whether target files are configured, in a section as it was read."""
    found = discovery.get("files") if isinstance(discovery, dict) else getattr(discovery, "files", None)
    return bool(found)
