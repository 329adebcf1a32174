"""Where settings come from, which wins, and what each mistake is told."""

from __future__ import annotations

import argparse
import os
import re
import socket

import pytest
from pydantic import BaseModel

from kvwatch.clock import SystemClock
from kvwatch.commands import cli
from kvwatch.config.flags import add_flags
from kvwatch.config.settings import Settings
from kvwatch.config.sources import load
from kvwatch.config.values import parse_duration
from kvwatch.daemon.daemon import Daemon
from kvwatch.errors import ConfigError

SECRET = "hunter2"  # noqa: S105 - looked for in what is printed


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("KVWATCH"):
            monkeypatch.delenv(name)


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Settings from flags, an environment and the text of a YAML file."""

    def settings(*flags, env=None, yaml=None):
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        if yaml is not None:
            path = tmp_path / "kvwatch.yaml"
            path.write_text(yaml)
            flags = (*flags, f"--config.file={path}")
        parser = argparse.ArgumentParser()
        source = add_flags(parser)
        return load(parser.parse_args(flags), source)

    return settings


def urls(settings):
    return [target.url for target in settings.targets]


def faults_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.errors


def test_zero_configuration_watches_the_vllm_beside_us(configure):
    settings = configure()
    assert urls(settings) == ["http://127.0.0.1:8000/metrics"]
    assert settings.web.host_port == ("0.0.0.0", 20058)  # noqa: S104 - compared, not bound
    assert (settings.poll.interval, settings.poll.deadline) == (5.0, 4.0)


@pytest.mark.parametrize(
    ("flags", "env", "yaml", "interval"),
    [
        pytest.param((), {}, "poll: {interval: 10s}", 10.0, id="file-over-default"),
        pytest.param((), {"KVWATCH_POLL__INTERVAL": "11s"}, "poll: {interval: 10s}", 11.0, id="environment-over-file"),
        pytest.param(("--poll.interval=12s",), {"KVWATCH_POLL__INTERVAL": "11s"}, "poll: {interval: 10s}", 12.0, id="flag-over-all"),
        pytest.param(("--poll.interval=12s",), {}, "poll: {interval: 10s}", 12.0, id="flag-over-file"),
        pytest.param((), {"kvwatch_poll__interval": "11s"}, None, 11.0, id="variables-in-lower-case"),
    ],
)
def test_the_nearer_source_wins(configure, flags, env, yaml, interval):
    assert configure(*flags, env=env, yaml=yaml).poll.interval == interval


def test_sources_are_merged_inside_a_section(configure):
    settings = configure(
        "--poll.max-body-bytes=99",
        env={"KVWATCH_POLL__TIMEOUT": "3s", "KVWATCH_ALERTMANAGER__LABELS__POD": "vllm-0"},
        yaml="poll: {interval: 10s, timeout: 1s}\nalertmanager: {labels: {namespace: llm}}",
    )
    assert (settings.poll.interval, settings.poll.timeout, settings.poll.max_body_bytes) == (10.0, 3.0, 99)
    assert settings.alertmanager.labels == {"namespace": "llm", "pod": "vllm-0"}


@pytest.mark.parametrize(
    ("flags", "env", "yaml", "expected"),
    [
        pytest.param(("http://a/m", "http://b/m"), {}, None, ["http://a/m", "http://b/m"], id="command-line"),
        pytest.param((), {"KVWATCH_TARGETS": "http://a/m, http://b/m"}, None, ["http://a/m", "http://b/m"], id="environment"),
        pytest.param((), {}, "targets: [{url: http://a/m, name: a}, http://b/m]", ["http://a/m", "http://b/m"], id="file"),
        pytest.param(("http://a/m",), {"KVWATCH_TARGETS": "http://b/m"}, "targets: [http://c/m]", ["http://a/m"], id="command-line-wins"),
        pytest.param((), {"KVWATCH_TARGETS": ""}, None, ["http://127.0.0.1:8000/metrics"], id="empty-is-none"),
        pytest.param((), {}, "targets: []", ["http://127.0.0.1:8000/metrics"], id="empty-list-is-none"),
        pytest.param((), {"KVWATCH_DISCOVERY__FILES": "/etc/a.json"}, None, [], id="target-files-instead"),
        pytest.param((), {}, "discovery: {refresh: 5s}", ["http://127.0.0.1:8000/metrics"], id="refresh-alone-discovers-nothing"),
        pytest.param(("dns+http://vllm.llm.svc:8000/metrics",), {}, None, ["dns+http://vllm.llm.svc:8000/metrics"], id="dns"),
        pytest.param(("http://[::1]:8000/metrics",), {}, None, ["http://[::1]:8000/metrics"], id="ipv6"),
    ],
)
def test_targets(configure, flags, env, yaml, expected):
    assert urls(configure(*flags, env=env, yaml=yaml)) == expected


def test_a_target_is_named_by_its_url_unless_it_has_a_name(configure):
    settings = configure(yaml="targets: [{url: http://a/m, name: first, max_num_seqs: 8}, http://b/m]")
    assert [(target.name, target.max_num_seqs) for target in settings.targets] == [("first", 8), ("http://b/m", None)]


@pytest.mark.parametrize(
    ("flags", "env", "labels"),
    [
        pytest.param((), {"KVWATCH_GPU__LABELS": "pod=vllm-0, namespace=llm"}, {"pod": "vllm-0", "namespace": "llm"}, id="environment"),
        pytest.param(("--gpu.labels", "pod=vllm-0,namespace=llm"), {}, {"pod": "vllm-0", "namespace": "llm"}, id="flag"),
        pytest.param(
            ("--gpu.labels", "pod=vllm-0", "--gpu.labels", "namespace=llm"), {}, {"pod": "vllm-0", "namespace": "llm"}, id="flags"
        ),
        pytest.param((), {"KVWATCH_GPU__LABELS": "expr=a=b"}, {"expr": "a=b"}, id="equals-sign-in-value"),
    ],
)
def test_labels(configure, flags, env, labels):
    assert configure(*flags, env=env).gpu.labels == labels


@pytest.mark.parametrize(
    "yaml", [pytest.param("", id="empty"), pytest.param("# nothing\n", id="comment"), pytest.param("poll:\n", id="section")]
)
def test_a_file_with_everything_commented_out_is_the_defaults(configure, yaml):
    assert configure(yaml=yaml).model_dump() == configure().model_dump()


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("15s", 15.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("2", 2.0),
        (" 2s ", 2.0),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_durations(written, seconds):
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "abc", "15 s", "-5s", "5sec", "1m-30s", "s", "nan", "inf", True, None, float("inf"), float("nan"), [5]]
)
def test_what_is_no_duration(written):
    with pytest.raises(ValueError, match="is not a duration: write it as 15s"):
        parse_duration(written)


SERVICE_LINKS = {
    "KVWATCH_SERVICE_HOST": "10.0.0.1",
    "KVWATCH_SERVICE_PORT": "20058",
    "KVWATCH_SERVICE_PORT_HTTP": "20058",
    "KVWATCH_PORT": "tcp://10.0.0.1:20058",
    "KVWATCH_PORT_20058_TCP": "tcp://10.0.0.1:20058",
    "KVWATCH_PORT_20058_TCP_PROTO": "tcp",
    "KVWATCH_METRICS_SERVICE_HOST": "10.0.0.1",
    "KVWATCH_WEB_PORT": "tcp://10.0.0.1:20058",
    "KVWATCH_LOG_PORT_80_TCP_ADDR": "10.0.0.1",
}


def test_what_kubernetes_puts_into_the_environment_for_a_service_is_no_setting(configure):
    assert configure(env=SERVICE_LINKS).model_dump() == Settings().model_dump()


@pytest.mark.parametrize(
    ("flags", "env", "yaml", "expected"),
    [
        pytest.param((), {}, "- a", ["FILE: the file must hold a mapping of settings, not a list"], id="list-root"),
        pytest.param((), {}, "just words", ["FILE: the file must hold a mapping of settings, not a str"], id="text-root"),
        pytest.param((), {}, "poll: {interval: 1s\nweb: {", ["FILE:2: did not find expected ',' or '}'"], id="not-yaml"),
        pytest.param((), {}, "poll:\n  interval: 1s\n  interval: 2s", ["FILE:3: the key 'interval' stands twice"], id="duplicate-key"),
        pytest.param((), {}, "{[1]: a}", ["FILE:1: a key must be a word"], id="list-as-key"),
        pytest.param((), {}, "polls: {interval: 1s}", ["polls: there is no such setting"], id="unknown-section"),
        pytest.param((), {}, "poll: {intervall: 1s}", ["poll.intervall: there is no such setting"], id="unknown-key"),
        pytest.param(
            (), {}, "targets: [{url: http://a/m, nmae: x}]", ["targets.0.nmae: there is no such setting"], id="unknown-key-of-target"
        ),
        pytest.param((), {}, "targets: [{name: x}]", ["targets.0.url: it is missing"], id="target-without-url"),
        pytest.param((), {}, "targets: {url: http://a/m}", ["targets: it must be a list"], id="targets-not-a-list"),
        pytest.param((), {}, "web: []", ["web: it must be a group of settings"], id="section-not-a-mapping"),
        pytest.param((), {"KVWATCH_INTERVAL": "1s"}, None, ["environment: KVWATCH_INTERVAL is not a setting"], id="unknown-variable"),
        pytest.param(
            (), {"KVWATCH_POLL__INTERVALL": "1s"}, None, ["poll.intervall: there is no such setting"], id="unknown-nested-variable"
        ),
        pytest.param(
            (),
            {"KVWATCH_POLL": "1s"},
            None,
            ["environment: KVWATCH_POLL is a group of settings: write KVWATCH_POLL__NAME_OF_ONE"],
            id="variable-for-a-section",
        ),
        pytest.param(
            ("--poll.interval=soon",), {}, None, ["poll.interval: 'soon' is not a duration: write it as 15s, 1m30s or 500ms"], id="flag"
        ),
        pytest.param(("--poll.interval=0s",), {}, None, ["poll.interval: it must be greater than 0"], id="no-interval"),
        pytest.param(("--poll.interval=1ms",), {}, None, ["poll.interval: it must be greater than or equal to 0.1"], id="interval-of-1-ms"),
        pytest.param(
            ("--poll.interval=99999d",), {}, None, ["poll.interval: it must be less than or equal to 604800"], id="interval-of-years"
        ),
        pytest.param(
            (), {}, "poll: {interval: .inf}", ["poll.interval: inf is not a duration: write it as 15s, 1m30s or 500ms"], id="infinity"
        ),
        pytest.param(
            ("--poll.timeout=6s",), {}, None, ["poll: poll.timeout must not be longer than poll.interval"], id="timeout-over-interval"
        ),
        pytest.param(("--window.fast=2m",), {}, None, ["window: window.fast must be shorter than window.slow"], id="fast-not-faster"),
        pytest.param(
            ("--web.listen-address=20058",),
            {},
            None,
            ["web.listen_address: '20058' is not a listen address: write host:port, :port or [ipv6]:port"],
            id="listen-address",
        ),
        pytest.param(
            ("--web.listen-address=::1:20058",),
            {},
            None,
            ["web.listen_address: '::1:20058' is not a listen address: write host:port, :port or [ipv6]:port"],
            id="bare-ipv6",
        ),
        pytest.param(("--web.cert-file=/x",), {}, None, ["web: cert_file and key_file go together"], id="certificate-without-key"),
        pytest.param(
            ("ftp://vllm:8000",),
            {},
            None,
            ["targets.0.url: 'ftp://vllm:8000': a URL must start with http:// or https:// or dns+http:// or dns+https:// and name a host"],
            id="url-with-another-scheme",
        ),
        pytest.param(
            ("http://a:99999/m",), {}, None, ["targets.0.url: 'http://a:99999/m': Port out of range 0-65535"], id="port-out-of-range"
        ),
        pytest.param(("http://[::1/m",), {}, None, ["targets.0.url: 'http://[::1/m': Invalid IPv6 URL"], id="broken-ipv6"),
        pytest.param(("http://a/m", "http://a/m"), {}, None, ["targets: two targets of one name: http://a/m"], id="target-twice"),
        pytest.param(
            (),
            {},
            "targets: [{url: http://a/m, name: x}, {url: http://b/m, name: x}]",
            ["targets: two targets of one name: x"],
            id="name-twice",
        ),
        pytest.param((), {"KVWATCH_GPU__LABELS": "pod"}, None, ["gpu.labels: labels are written as name=value,name=value"], id="labels"),
        pytest.param(
            ("--thresholds.storm-ratio=10",),
            {},
            None,
            ["thresholds.storm_ratio: it must be less than or equal to 1"],
            id="percent-for-ratio",
        ),
        pytest.param(
            (),
            {},
            "alertmanager: {basic_auth: {username: u}}",
            ["alertmanager.basic_auth.password_file: it is missing"],
            id="no-password-file",
        ),
        pytest.param(
            (),
            {},
            "alertmanager: {external_url: watch.example}",
            ["alertmanager.external_url: 'watch.example': a URL must start with http:// or https:// and name a host"],
            id="link-without-scheme",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(configure, flags, env, yaml, expected):
    faults = faults_of(lambda: configure(*flags, env=env, yaml=yaml))
    assert [re.sub(r"^/\S*kvwatch\.yaml", "FILE", fault) for fault in faults] == expected


@pytest.mark.parametrize(
    ("path", "fault"),
    [pytest.param("nowhere.yaml", "No such file or directory", id="missing"), pytest.param(".", "Is a directory", id="directory")],
)
def test_a_file_that_cannot_be_read(configure, tmp_path, path, fault):
    assert faults_of(lambda: configure(f"--config.file={tmp_path / path}")) == (f"{tmp_path / path}: {fault}",)


def test_a_file_that_is_not_utf_8(configure, tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"log: {level: \xe9}")
    assert faults_of(lambda: configure(f"--config.file={tmp_path / 'latin.yaml'}")) == (f"{tmp_path / 'latin.yaml'}: not UTF-8",)


def test_all_mistakes_of_all_sources_are_told_at_once(configure):
    faults = faults_of(
        lambda: configure(
            "--window.fast=soon",
            env={"KVWATCH_INTERVAL": "1s", "KVWATCH_WEB__LISTEN_ADDRESS": "nowhere"},
            yaml="poll: {intervall: 1s}\ntargets: [{url: http://a/m, name: x}, {url: http://b/m, name: x}]\nlog: {level: loud}",
        )
    )
    assert sorted(fault.split(": ")[0] for fault in faults) == [
        "environment",
        "log.level",
        "poll.intervall",
        "targets",
        "web.listen_address",
        "window.fast",
    ]


@pytest.mark.parametrize(
    ("flags", "env", "yaml"),
    [
        pytest.param((f"http://user:{SECRET}@a/m",), {}, None, id="target"),
        pytest.param((f"user:{SECRET}@a/m",), {}, None, id="target-without-scheme"),
        pytest.param((), {"KVWATCH_ALERTMANAGER__URLS": f"ftp://user:{SECRET}@a"}, None, id="alertmanager"),
        pytest.param((), {}, f"alertmanager: {{basic_auth: {{username: u, password: {SECRET}}}}}", id="password-in-the-file"),
        pytest.param((), {"KVWATCH_PASSWORD": SECRET}, None, id="unknown-variable"),
        pytest.param((), {"KVWATCH_ALERTMANAGER__BASIC_AUTH": f'{{"password": "{SECRET}"}}'}, None, id="json"),
        pytest.param((), {"KVWATCH_ALERTMANAGER": f'{{"password": "{SECRET}'}, None, id="broken-json"),
    ],
)
def test_a_secret_is_never_shown(configure, flags, env, yaml):
    assert SECRET not in "\n".join(faults_of(lambda: configure(*flags, env=env, yaml=yaml)))


def test_the_command_prints_a_line_per_mistake_and_exits_with_2(capsys):
    assert cli.main(["run", "--poll.interval=soon", "--window.fast=9m", "--config.file=/nonexistent.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "kvwatch: /nonexistent.yaml: No such file or directory",
        "kvwatch: poll.interval: 'soon' is not a duration: write it as 15s, 1m30s or 500ms",
        "kvwatch: window: window.fast must be shorter than window.slow",
    ]


def test_an_unknown_flag_exits_with_2(capsys):
    assert cli.main(["run", "--poll.intervall=5s"]) == 2
    assert "--poll.intervall" in capsys.readouterr().err


def test_config_check_reads_and_does_not_run(capsys):
    assert cli.main(["run", "--config.check", "--web.listen-address=127.0.0.1:0"]) == 0
    assert capsys.readouterr().out == "the configuration is good\n"


def test_a_port_that_is_taken_is_told_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = Daemon(Settings(web={"listen_address": address}), SystemClock())
        assert faults_of(daemon.start) == (f"web.listen_address {address}: Address already in use",)


def knobs(model, path=()):
    for name, field in model.model_fields.items():
        inner = next((part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_section(part)), None)
        if inner is None or name == "targets":
            yield (*path, name), field
        else:
            yield from knobs(inner, (*path, name))


def _is_section(part):
    return isinstance(part, type) and issubclass(part, BaseModel)


KNOBS = [pytest.param(path, field, id=".".join(path)) for path, field in knobs(Settings)]


@pytest.fixture(scope="module")
def run_help():
    """The help text, without its line breaks."""
    parser = argparse.ArgumentParser(prog="kvwatch run")
    add_flags(parser)
    return " ".join(parser.format_help().split())


@pytest.mark.parametrize(("path", "field"), [knob for knob in KNOBS if knob.id != "targets"])
def test_help_explains_every_setting(run_help, path, field):
    flag = "--" + ".".join(path).replace("_", "-")
    explained = run_help.partition(f" {flag} ")[2] or run_help.partition(f" {flag}, ")[2]
    description = " ".join((field.description or "").replace("``", "").split()).removesuffix(".")
    assert len(description) > 10
    assert description in explained[: len(description) + 60]


def test_help_speaks_the_operators_language(run_help):
    assert "--poll.interval DURATION" in run_help
    assert "(default: 5s)" in run_help
    assert "--poll.timeout DURATION" in run_help
    assert "--web.cert-file FILE" in run_help
    assert not re.search(r"\b(None|float|list|dict|Path|str)\b", run_help)


def test_help_offers_no_whole_sections(run_help):
    assert "--poll " not in run_help
    assert "--targets" not in run_help
