"""Direct push and the example configuration against a real Alertmanager, without a storm: a few seconds each."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from e2e_stack import CLOCK, Webhook, alertmanager, get, wait_for

from kvwatch.alerts.registry import DEFINITIONS, ONLY_PROMETHEUS
from kvwatch.commands.cli import main
from kvwatch.config.settings import AlertmanagerSettings, BasicAuthSettings
from kvwatch.exporter.alertmanager.client import Outcome, http_post
from kvwatch.exporter.alertmanager.push import AlertmanagerPush
from kvwatch.model import Alert, Assessment, Cause, EngineId, Severity, State, TargetView, Verdict

pytestmark = pytest.mark.e2e

# bcrypt of what the test writes into the password file
HASH: Final = "$2b$04$9trA3C84isQSsfTTqPc1zuNGogFoNOH/tabXFZTm494tkMc7ah8jK"
PASSWORD: Final = "out-of-a-file"  # noqa: S105 - of a server that lives for one test


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    found = Webhook()
    yield found
    found.close()


@pytest.fixture
def running(require_tool: Callable[[str], Path], tmp_path: Path, webhook: Webhook) -> Iterator[str]:
    """URL of an Alertmanager with the example configuration, whose messages leave as fast as its pages."""
    program, url = alertmanager(
        require_tool, tmp_path, webhook, "push", change=lambda text: text.replace("group_wait: 30s", "group_wait: 1s")
    )
    yield url
    program.stop()


class Counts:
    def __init__(self) -> None:
        self.ended: list[bool] = []

    def alertmanager_added(self, url: str) -> None:
        """Known."""

    def notification_ended(self, url: str, *, failed: bool) -> None:
        self.ended.append(failed)


def view(*alerts: Alert) -> TargetView:
    verdict = Verdict(EngineId("demo-8b", "0"), State.KV_BOUND, Cause.PREEMPTING, (), 0.0)
    return TargetView("vllm", "http://vllm", 5.0, at=0.0, assessments=(Assessment(verdict, None, alerts),))


def storm(since: float) -> Alert:
    return Alert("PreemptionStorm", Severity.CRITICAL, since, "vLLM throws running requests off.", "48 preemptions")


def push_to(url: str, counts: Counts) -> AlertmanagerPush:
    return AlertmanagerPush(
        AlertmanagerSettings(urls=[url], labels={"pod": "vllm-0"}), CLOCK, counts, poll_interval=5.0, instance="vllm-0:20058"
    )


def known(url: str) -> list[dict[str, Any]]:
    return get(f"{url}/api/v2/alerts")


def test_a_restarted_kvwatch_goes_on_with_the_same_alert_and_nobody_hears_of_an_end(running: str, webhook: Webhook) -> None:
    counts = Counts()
    began = CLOCK.monotonic() - 100.0
    before = push_to(running, counts)
    before.publish(view(storm(began)))
    before.replicas[0].step()
    (first,) = known(running)
    wait_for("the page", lambda: webhook.of("push", "pager"), 10)
    before.stop()

    after = push_to(running, counts)
    after.publish(view())
    after.replicas[0].step()
    after.publish(view(storm(CLOCK.monotonic())))
    after.replicas[0].step()
    (second,) = known(running)
    assert second["startsAt"] == first["startsAt"]
    assert second["endsAt"] > first["endsAt"]
    assert second["labels"] == first["labels"]
    assert second["status"]["state"] == "active"
    assert webhook.of("push", "pager", status="resolved") == []

    after.publish(view())
    after.replicas[0].step()
    assert known(running) == []
    assert counts.ended == [False, False, False]


def test_a_bad_alert_is_refused_and_the_good_one_of_the_batch_is_kept(running: str) -> None:
    good = {"labels": {"alertname": "KVWatchKVBound", "severity": "warning"}}
    bad = {"labels": {"a-b": "c"}}
    outcome, detail = http_post(running, AlertmanagerSettings(), CLOCK)(json.dumps([good, bad]).encode())
    assert outcome is Outcome.REFUSED
    assert "a-b" in detail
    assert [alert["labels"]["alertname"] for alert in known(running)] == ["KVWatchKVBound"]


def test_a_storm_and_a_dead_target_silence_what_they_explain(running: str, webhook: Webhook) -> None:
    def post(*alerts: dict[str, str]) -> None:
        labelled = [{"labels": {"namespace": "llm", "pod": "vllm-0", "model_name": "demo-8b", **labels}} for labels in alerts]
        request = Request(f"{running}/api/v2/alerts", json.dumps(labelled).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=5) as answer:
            assert answer.status == 200

    post(
        {"alertname": "KVWatchPreemptionStorm", "severity": "critical", "target": "a", "engine": "0"},
        {"alertname": "KVWatchEngineStalled", "severity": "critical", "target": "b", "engine": "0"},
        {"alertname": "KVWatchTargetDown", "severity": "warning", "target": "c", "model_name": ""},
    )
    wait_for("the pages", lambda: len(webhook.of("push", "pager")) == 2, 10)
    post(
        {"alertname": "KVWatchKVBound", "severity": "warning", "target": "a", "engine": "0"},
        {"alertname": "KVWatchLatencyObjectiveMissed", "severity": "warning", "target": "a", "engine": "0"},
        {"alertname": "KVWatchLatencyObjectiveMissed", "severity": "warning", "target": "b", "engine": "0"},
        {"alertname": "KVWatchWatcherBlind", "severity": "warning", "target": "c", "engine": "0"},
        {"alertname": "KVWatchEngineStalled", "severity": "critical", "target": "c", "engine": "0"},
        # The same kinds, elsewhere: these must be told.
        {"alertname": "KVWatchKVBound", "severity": "warning", "target": "a", "engine": "1"},
        {"alertname": "KVWatchLatencyObjectiveMissed", "severity": "warning", "target": "c2", "engine": "0"},
        {"alertname": "KVWatchWatcherBlind", "severity": "warning", "target": "a", "engine": "0", "pod": "vllm-1"},
    )
    wait_for("the other messages", lambda: len(webhook.of("push", "chat")) >= 4, 10)

    def told(receiver: str) -> set[tuple[str, str, str]]:
        return {(a["labels"]["alertname"], a["labels"]["target"], a["labels"].get("engine", "")) for _, a in webhook.of("push", receiver)}

    assert told("pager") == {("KVWatchPreemptionStorm", "a", "0"), ("KVWatchEngineStalled", "b", "0")}
    assert told("chat") == {
        ("KVWatchTargetDown", "c", ""),
        ("KVWatchKVBound", "a", "1"),
        ("KVWatchLatencyObjectiveMissed", "c2", "0"),
        ("KVWatchWatcherBlind", "a", "0"),
    }
    silenced = {(a["labels"]["alertname"], a["labels"]["target"]) for a in known(running) if a["status"]["inhibitedBy"]}
    assert silenced == {
        ("KVWatchKVBound", "a"),
        ("KVWatchLatencyObjectiveMissed", "a"),
        ("KVWatchLatencyObjectiveMissed", "b"),
        ("KVWatchWatcherBlind", "c"),
        ("KVWatchEngineStalled", "c"),
    }


SIDECAR: Final = "http://127.0.0.1:8000/metrics"


def test_a_silence_of_the_runbook_mutes_one_of_three_sidecars_whose_target_has_one_name(
    running: str, webhook: Webhook, require_tool: Callable[[str], Path], repository: Path
) -> None:
    for number in range(3):
        push = AlertmanagerPush(
            AlertmanagerSettings(urls=[running], labels={"namespace": "llm", "pod": f"vllm-{number}"}),
            CLOCK,
            Counts(),
            poll_interval=5.0,
            instance=f"10.0.0.{number}:20058",
        )
        push.publish(replace(view(storm(CLOCK.monotonic())), name=SIDECAR, url=SIDECAR))
        push.replicas[0].step()
    wait_for("three pages", lambda: {a["labels"]["pod"] for _, a in webhook.of("push", "pager")} == {"vllm-0", "vllm-1", "vllm-2"}, 10)

    shown = {one["labels"]["pod"]: one["labels"] for one in known(running)}["vllm-1"]
    runbook = (repository / "rules" / "RUNBOOK.md").read_text()
    command = re.search(r"`amtool (silence add alertname=KVWatchPreemptionStorm .*?)`", runbook)[1]
    silence = re.sub(r"<(\w+)>", lambda placeholder: shown.get(placeholder[1], "drill"), command)
    result = subprocess.run(
        [str(require_tool("amtool")), f"--alertmanager.url={running}", *shlex.split(silence), "--author=test"],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    suppressed = wait_for("the silence", lambda: {a["labels"]["pod"] for a in known(running) if a["status"]["silencedBy"]}, 10)
    assert suppressed == {"vllm-1"}


PODS: Final = [{"namespace": "llm", "pod": f"vllm-{n}", "instance": f"10.0.0.{n}:20058", "target": SIDECAR} for n in range(3)]
"""Three sidecars."""
ALONE: Final = [{"namespace": "watch", "pod": "kvwatch-0", "instance": "10.0.1.1:20058", "target": f"vllm-{n}"} for n in range(2)]
"""Two servers that one kvwatch in a pod of its own watches."""
HOSTS: Final = [{"instance": f"gpu-{n}:20058", "target": "http://localhost:8000/metrics"} for n in range(2)]
"""Two hosts, without Kubernetes."""
ENGINES: Final = [{"model_name": model, "engine": engine} for model in ("demo-8b", "demo-70b") for engine in ("0", "1")]
BLIND: Final[list[dict[str, str]]] = [{}]
"""A page that names no engine."""


def everywhere(alert: str) -> list[dict[str, str]]:
    """That alert's labels wherever it may fire at once."""
    places, common = [*PODS, *ALONE, *HOSTS], {"alertname": alert, "severity": "warning"}
    if alert == "KVWatchDown":
        return [
            {**common, "job": job, **{k: v for k, v in place.items() if k != "target"}}
            for place in PODS + HOSTS
            for job in ("a-kvwatch", "b-kvwatch")
        ]
    engines = BLIND if alert == "KVWatchTargetDown" else ENGINES + BLIND if alert == "KVWatchWatcherBlind" else ENGINES
    return [{**common, **place, **engine} for place in places for engine in engines]


def filled_from(labels: Mapping[str, str], matcher: re.Match[str]) -> str:
    """``pod="<pod>"`` with the alert's pod; empty where it has none."""
    return f'{matcher[1]}="{labels.get(matcher[1], "")}"'


def test_the_silence_that_the_runbook_has_for_an_alert_mutes_that_one_wherever_it_fires_and_no_other(
    running: str, require_tool: Callable[[str], Path], repository: Path
) -> None:
    commands = dict(re.findall(r"`amtool (silence add alertname=(\w+) .*?)`", (repository / "rules" / "RUNBOOK.md").read_text()))
    assert len(commands) == len(DEFINITIONS) + len(ONLY_PROMETHEUS)
    fired = {alert: everywhere(alert) for alert in commands.values()}
    body = [{"labels": labels} for alerts in fired.values() for labels in alerts]
    request = Request(f"{running}/api/v2/alerts", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=5) as answer:
        assert answer.status == 200
    silenced = []
    for command, alert in commands.items():
        for one in (fired[alert][0], fired[alert][len(fired[alert]) // 2], fired[alert][-1]):
            silence = re.sub(r'(\w+)="<\1>"', partial(filled_from, one), command)
            result = subprocess.run(
                [str(require_tool("amtool")), f"--alertmanager.url={running}", *shlex.split(silence), "--author=test"],
                capture_output=True, text=True, check=False, timeout=30,
            )  # fmt: skip
            assert result.returncode == 0, result.stderr
            silenced.append(one)

    def muted() -> list[dict[str, str]]:
        return [a["labels"] for a in known(running) if a["status"]["silencedBy"]]

    wait_for("the silences", lambda: len(muted()) >= len(silenced), 15)
    assert sorted(map(str, (sorted(one.items()) for one in muted()))) == sorted(map(str, (sorted(one.items()) for one in silenced)))


def test_three_sidecars_without_any_settings_are_three_alerts(running: str) -> None:
    for number in range(3):
        push = AlertmanagerPush(AlertmanagerSettings(urls=[running]), CLOCK, Counts(), poll_interval=5.0, instance=f"vllm-{number}:20058")
        push.publish(replace(view(storm(CLOCK.monotonic())), name=SIDECAR, url=SIDECAR))
        push.replicas[0].step()
    assert {a["labels"]["instance"] for a in known(running)} == {"vllm-0:20058", "vllm-1:20058", "vllm-2:20058"}


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "pager"), ("warning", "chat")])
def test_the_fire_drill_takes_the_way_of_a_page_or_of_a_message(
    running: str, webhook: Webhook, severity: str, receiver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alert-test", "--alertmanager.urls", running, "--severity", severity, "--for", "30s"]) == 0
    assert capsys.readouterr().out == f"{running}: accepted\n"
    ((_, alert),) = wait_for("the drill", lambda: webhook.of("push", receiver), 15)
    assert (alert["labels"]["alertname"], alert["labels"]["test"]) == ("KVWatchAlertTest", "true")
    assert "Nothing is wrong" in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"].endswith("/runbook#KVWatchAlertTest")


@pytest.fixture
def guarded(require_tool: Callable[[str], Path], tmp_path: Path, webhook: Webhook, certificate: Path) -> Iterator[tuple[str, Path, Path]]:
    """HTTPS URL of an Alertmanager that asks for a password, its certificate and the password's file."""
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    web = {"tls_server_config": {"cert_file": str(certificate), "key_file": str(certificate)}, "basic_auth_users": {"kvwatch": HASH}}
    (tmp_path / "web.yaml").write_text(json.dumps(web))
    program, url = alertmanager(
        require_tool,
        tmp_path,
        webhook,
        "push",
        f"--web.config.file={tmp_path / 'web.yaml'}",
        answers=lambda program: "TLS is enabled" in program.log(),
    )
    yield url.replace("http://", "https://"), certificate, password
    program.stop()


def test_tls_and_a_password_from_a_file_that_may_change(guarded: tuple[str, Path, Path]) -> None:
    url, certificate, password = guarded
    auth = BasicAuthSettings(username="kvwatch", password_file=password)
    post = http_post(url, AlertmanagerSettings(ca_file=certificate, basic_auth=auth), CLOCK)
    body = json.dumps([{"labels": {"alertname": "KVWatchKVBound"}}]).encode()
    assert post(body) == (Outcome.ACCEPTED, "")
    trusting_nobody = http_post(url, AlertmanagerSettings(basic_auth=auth), CLOCK)
    assert trusting_nobody(body)[0] is Outcome.FAILED, "its certificate is known to nobody"

    password.write_text("rotated too early\n")
    outcome, detail = post(body)
    assert (outcome, detail) == (Outcome.FAILED, "HTTP 401 Unauthorized")

    password.write_text(PASSWORD)
    assert post(body) == (Outcome.ACCEPTED, "")

    outcome, detail = http_post(url, AlertmanagerSettings(basic_auth=auth), CLOCK)(body)
    assert outcome is Outcome.FAILED
    assert "CERTIFICATE_VERIFY_FAILED" in detail
