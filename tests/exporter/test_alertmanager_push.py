"""What Alertmanager is told and when, with a transport and a clock that do as they are bid."""

from __future__ import annotations

import json
import threading
from dataclasses import FrozenInstanceError, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from pydantic import ValidationError

from kvwatch.config.settings import AlertmanagerSettings, BasicAuthSettings
from kvwatch.config.web import WebSettings
from kvwatch.exporter.alertmanager.client import Outcome, Post
from kvwatch.exporter.alertmanager.push import AlertmanagerPush, instance_of
from kvwatch.model import Alert, Assessment, Cause, EngineId, Severity, State, TargetView, Verdict

ONE: Final = "http://am-1:9093"
TWO: Final = "http://am-2:9093"
EPOCH: Final = 1_700_000_000.0


class HandClock:
    """Both clocks, set by hand; the wall clock is `EPOCH` ahead, and whatever somebody set it to beyond that."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stepped = 0.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return EPOCH + self.now + self.stepped


class Alertmanagers:
    """Transports that keep what they are sent, and answer as told."""

    def __init__(self) -> None:
        self.outcome: dict[str, Outcome] = {}
        self.posts: list[tuple[str, list[dict[str, Any]]]] = []
        self.counted: list[tuple[str, bool]] = []
        self.known: list[str] = []

    def post_to(self, url: str, _settings: AlertmanagerSettings, _clock: object) -> Post:
        def post(body: bytes) -> tuple[Outcome, str]:
            self.posts.append((url, json.loads(body)))
            return self.outcome.get(url, Outcome.ACCEPTED), "so they said"

        return post

    def alertmanager_added(self, url: str) -> None:
        self.known.append(url)

    def notification_ended(self, url: str, *, failed: bool) -> None:
        self.counted.append((url, failed))

    def take(self, url: str = ONE) -> list[list[dict[str, Any]]]:
        """What arrived at a URL since the last time, one list per post."""
        taken = [alerts for to, alerts in self.posts if to == url]
        self.posts = [(to, alerts) for to, alerts in self.posts if to != url]
        return taken


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.clock = HandClock()
        self.them = Alertmanagers()
        self.settings = AlertmanagerSettings(**{"urls": [ONE], **settings})
        self.push = AlertmanagerPush(
            self.settings, self.clock, self.them, poll_interval=5.0, instance="gpu-1:20058", post_to=self.them.post_to
        )

    def poll(self, *alerts: Alert, target: str = "vllm", engine: str = "0") -> None:
        self.push.publish(view(*alerts, target=target, engine=engine))

    def step(self) -> list[float | None]:
        return [replica.step() for replica in self.push.replicas]


def storm(since: float, description: str = "48 preemptions") -> Alert:
    return Alert("PreemptionStorm", Severity.CRITICAL, since, "vLLM throws running requests off.", description)


def view(*alerts: Alert, target: str = "vllm", engine: str = "0") -> TargetView:
    verdict = Verdict(EngineId("demo-8b", engine), State.KV_BOUND, Cause.PREEMPTING, (), 0.0)
    return TargetView(target, "http://vllm:8000/metrics", 5.0, at=0.0, assessments=(Assessment(verdict, None, alerts),))


def at(text: str) -> float:
    """Monotonic time of a timestamp."""
    return datetime.fromisoformat(text).timestamp() - EPOCH


def test_a_firing_alert_is_told_once_with_rules_names_labels_and_an_end_four_resends_ahead() -> None:
    bench = Bench(labels={"pod": "vllm-0", "severity": "nonsense", "empty": ""}, external_url="http://kvwatch:20058/")
    bench.clock.now = 1003.0
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.step()
    assert bench.them.take() == [
        [
            {
                "labels": {
                    "alertname": "KVWatchPreemptionStorm",
                    "severity": "critical",
                    "priority": "P1",
                    "target": "vllm",
                    "model_name": "demo-8b",
                    "engine": "0",
                    "pod": "vllm-0",
                    "instance": "gpu-1:20058",
                },
                "annotations": {
                    "summary": "vLLM throws running requests off.",
                    "description": "48 preemptions",
                    "runbook_url": "http://kvwatch:20058/runbook#KVWatchPreemptionStorm",
                    "status_url": "http://kvwatch:20058/",
                },
                "startsAt": "2023-11-14T22:30:00.000Z",
                "endsAt": "2023-11-14T22:34:03.000Z",
                "generatorURL": "http://kvwatch:20058/",
            }
        ]
    ]


def test_without_settings_an_alert_carries_and_links_to_the_kvwatch_that_sent_it() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    (((alert,),),) = [bench.them.take()]
    assert alert["labels"]["instance"] == "gpu-1:20058"
    assert alert["annotations"]["runbook_url"] == "http://gpu-1:20058/runbook#KVWatchPreemptionStorm"
    assert alert["annotations"]["status_url"] == alert["generatorURL"] == "http://gpu-1:20058/"


def test_a_label_of_the_settings_goes_before_the_instance_kvwatch_finds() -> None:
    bench = Bench(labels={"instance": "vllm-0"})
    bench.poll(storm(since=1000.0))
    bench.step()
    ((alert,),) = bench.them.take()
    assert alert["labels"]["instance"] == "vllm-0"


def test_nothing_fires_nothing_is_sent() -> None:
    bench = Bench()
    bench.poll()
    assert bench.step() == [None]
    assert bench.them.posts == []


def test_a_firing_alert_is_told_again_every_resend_with_the_same_start_and_the_latest_text() -> None:
    bench = Bench()
    ends = []
    for second in range(0, 125, 5):
        bench.clock.now = 1000.0 + second
        bench.poll(storm(since=1000.0, description=f"after {second} s"))
        bench.step()
        for (alert,) in bench.them.take():
            assert at(alert["startsAt"]) == 1000.0
            ends.append((second, at(alert["endsAt"]), alert["annotations"]["description"]))
    assert ends == [(0, 1240.0, "after 0 s"), (60, 1300.0, "after 60 s"), (120, 1360.0, "after 120 s")]


def test_polls_rarer_than_the_resend_stretch_the_end() -> None:
    them, clock = Alertmanagers(), HandClock()
    push = AlertmanagerPush(
        AlertmanagerSettings(urls=[ONE]), clock, them, poll_interval=300.0, instance="gpu-1:20058", post_to=them.post_to
    )
    push.publish(view(storm(since=1000.0)))
    push.replicas[0].step()
    ((alert,),) = them.take()
    assert at(alert["endsAt"]) == 1000.0 + 4 * 300.0


def test_an_alert_that_ended_is_told_at_once_and_again_for_fifteen_minutes_with_the_same_end() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.them.take()
    ends = []
    for second in range(5, 1200, 5):
        bench.clock.now = 1000.0 + second
        bench.poll()
        bench.step()
        ends += [(second, at(alert["endsAt"])) for (alert,) in bench.them.take()]
    assert ends == [(5 + 60 * n, 1005.0) for n in range(16)]
    assert bench.step() == [None]


def test_an_alert_that_comes_back_after_its_end_has_a_new_start() -> None:
    bench = Bench()
    for now, alerts in ((1000.0, [storm(1000.0)]), (1005.0, []), (1010.0, [storm(1010.0)])):
        bench.clock.now = now
        bench.poll(*alerts)
        bench.step()
    told = [(at(alert["startsAt"]), at(alert["endsAt"])) for (alert,) in bench.them.take()]
    assert told == [(1000.0, 1240.0), (1000.0, 1005.0), (1010.0, 1250.0)]


def test_a_failed_post_is_tried_again_after_1_2_4_seconds_and_at_most_30() -> None:
    bench = Bench()
    bench.them.outcome[ONE] = Outcome.FAILED
    tries = []
    for tenth in range(2000):
        bench.clock.now = 1000.0 + tenth / 10
        bench.poll(storm(since=1000.0))
        bench.step()
        tries += [bench.clock.now - 1000.0] * len(bench.them.take())
    assert tries == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0, 121.0, 151.0, 181.0]
    assert bench.them.counted == [(ONE, True)] * 11


def test_an_outage_is_told_once_and_so_is_its_end() -> None:
    bench = Bench()
    with structlog.testing.capture_logs() as told:
        for second, outcome in enumerate([Outcome.FAILED] * 40 + [Outcome.ACCEPTED] * 40):
            bench.clock.now = 1000.0 + 5 * second
            bench.them.outcome[ONE] = outcome
            bench.poll(storm(since=1000.0))
            bench.step()
    assert [(one["event"], one["log_level"]) for one in told] == [
        ("alertmanager.not_reached", "warning"),
        ("alertmanager.reached_again", "info"),
    ]


def test_when_the_first_of_several_posts_fails_the_others_wait_with_it_and_none_is_lost() -> None:
    bench = Bench()
    bench.them.outcome[ONE] = Outcome.FAILED
    for number in range(150):
        bench.poll(storm(since=1000.0), target=f"vllm-{number:03}")
    assert bench.step() == [1.0]
    assert [len(alerts) for alerts in bench.them.take()] == [64]
    bench.them.outcome[ONE] = Outcome.ACCEPTED
    bench.clock.now = 1001.0
    assert bench.step() == [None]  # nothing is due again before a poll finds it firing
    assert [len(alerts) for alerts in bench.them.take()] == [64, 64, 22]


def test_it_looks_again_when_the_next_resend_is_due_and_not_before() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.clock.now = 1005.0
    bench.poll(storm(since=1000.0))
    assert bench.step() == [55.0]
    bench.clock.now = 1020.0
    assert bench.step() == [40.0]


def test_it_looks_again_in_less_than_a_second_where_a_resend_is_that_near() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.clock.now = 1059.5
    bench.poll(storm(since=1000.0))
    assert bench.step() == [0.5]


def test_a_post_that_hangs_does_not_keep_the_process_from_ending() -> None:
    assert [thread.daemon for thread in Bench(urls=[ONE, TWO]).push._threads] == [True, True]


def test_an_outage_shorter_than_the_alert_loses_nothing() -> None:
    bench = Bench()
    bench.them.outcome[ONE] = Outcome.FAILED
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.clock.now = 1060.0
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.them.take()
    bench.them.outcome[ONE] = Outcome.ACCEPTED
    bench.clock.now = 1062.0
    bench.step()
    ((alert,),) = bench.them.take()
    assert (at(alert["startsAt"]), at(alert["endsAt"])) == (1000.0, 1302.0)


def test_an_end_during_an_outage_is_told_after_it() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.them.take()
    bench.them.outcome[ONE] = Outcome.FAILED
    bench.clock.now = 1010.0
    bench.poll()
    bench.step()
    bench.them.take()
    bench.them.outcome[ONE] = Outcome.ACCEPTED
    bench.clock.now = 1300.0
    bench.step()
    ((alert,),) = bench.them.take()
    assert at(alert["endsAt"]) == 1010.0


def test_a_refused_batch_is_not_tried_again_before_the_resend_and_counts_as_failed() -> None:
    bench = Bench()
    bench.them.outcome[ONE] = Outcome.REFUSED
    tries = []
    for second in range(0, 70, 5):
        bench.clock.now = 1000.0 + second
        bench.poll(storm(since=1000.0))
        bench.step()
        tries += [second] * len(bench.them.take())
    assert tries == [0, 60]
    assert bench.them.counted == [(ONE, True)] * 2


def test_a_replica_that_is_down_does_not_keep_the_other_waiting() -> None:
    bench = Bench(urls=[ONE, TWO])
    bench.them.outcome[ONE] = Outcome.FAILED
    bench.poll(storm(since=1000.0))
    bench.step()
    assert len(bench.them.take(TWO)) == 1
    assert bench.them.known == [ONE, TWO]
    assert bench.them.counted == [(ONE, True), (TWO, False)]


def test_a_restarted_kvwatch_resolves_nothing_it_did_not_raise() -> None:
    before, after = Bench(), Bench()
    before.poll(storm(since=1000.0))
    before.step()
    before.push.stop()
    assert [at(alert["endsAt"]) > 1000.0 for (alert,) in before.them.take()] == [True]
    after.poll()  # its windows know nothing yet
    after.step()
    assert after.them.posts == []
    after.clock.now = 1040.0
    after.poll(storm(since=1040.0))
    after.step()
    ((alert,),) = after.them.take()
    assert at(alert["endsAt"]) == 1280.0


def test_when_polls_hang_the_alert_runs_out_by_itself() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.them.take()
    bench.clock.now = 1200.0
    assert bench.step() == [None]
    assert bench.them.posts == []


def test_a_target_watched_no_more_is_resolved() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.them.take()
    bench.clock.now = 1007.0
    bench.push.forget("vllm")
    bench.step()
    ((alert,),) = bench.them.take()
    assert at(alert["endsAt"]) == 1007.0


def test_a_resolved_alert_is_kept_for_exactly_fifteen_minutes() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.clock.now = 1005.0
    bench.poll()
    assert len(bench.push._record.notifications(1905.0)) == 1
    assert bench.push._record.notifications(1905.1) == ()


def test_news_wakes_whoever_sends_and_so_does_the_end() -> None:
    bench = Bench(urls=[ONE, TWO])
    for news in (lambda: bench.poll(storm(since=1000.0)), lambda: bench.push.forget("vllm"), bench.push.stop):
        for replica in bench.push.replicas:
            replica.wake.clear()
        news()
        assert [replica.wake.is_set() for replica in bench.push.replicas] == [True, True]


def test_after_an_outage_the_next_one_is_tried_again_as_soon_as_the_first() -> None:
    bench, waits = Bench(), []
    for now, outcome in ((1000.0, Outcome.FAILED), (1001.0, Outcome.FAILED), (1003.0, Outcome.ACCEPTED), (1070.0, Outcome.FAILED)):
        bench.clock.now = now
        bench.them.outcome[ONE] = outcome
        bench.poll(storm(since=1000.0))
        waits += bench.step()
    assert waits == [1.0, 2.0, None, 1.0]


def test_what_was_sent_of_alerts_that_are_over_is_forgotten_with_the_next_post() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0), target="pod-1")
    bench.step()
    bench.push.forget("pod-1")
    bench.step()
    bench.clock.now = 2000.0
    bench.poll(storm(since=2000.0), target="pod-2")
    bench.step()
    assert [dict(labels)["target"] for labels in bench.push.replicas[0]._delivery._sent] == ["pod-2"]


@pytest.mark.parametrize(
    ("external", "speaks", "link"),
    [
        pytest.param(None, "http", "http://gpu-1:20058/", id="http"),
        pytest.param(None, "https", "https://gpu-1:20058/", id="https"),
        pytest.param("http://watch.example/llm/", "https", "http://watch.example/llm/", id="what the settings say"),
    ],
)
def test_a_link_speaks_what_the_page_speaks_when_it_is_sent_unless_the_settings_say_where_it_is(
    external: str | None, speaks: str, link: str
) -> None:
    them, asked = Alertmanagers(), [speaks]
    settings = AlertmanagerSettings(urls=[ONE], external_url=external)
    push = AlertmanagerPush(settings, HandClock(), them, poll_interval=5.0, instance="gpu-1:20058", scheme=asked.pop, post_to=them.post_to)
    push.publish(view(storm(since=1000.0)))
    assert asked == [speaks]
    push.replicas[0].step()
    ((alert,),) = them.take()
    assert [alert["annotations"]["status_url"], alert["generatorURL"]] == [link, link]
    assert alert["annotations"]["runbook_url"] == f"{link}runbook#KVWatchPreemptionStorm"


def test_an_instance_is_the_hosts_name_with_the_port_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7")
    assert instance_of(WebSettings(listen_address="127.0.0.1:20059")) == "gpu-7:20059"


def test_a_notification_cannot_be_changed_while_another_thread_sends_it() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0))
    (one,) = bench.push._record.notifications(1000.0)
    with pytest.raises(FrozenInstanceError):
        one.summary = "changed"  # type: ignore[misc]


def test_targets_that_come_and_go_leave_nothing_behind() -> None:
    bench = Bench()
    for number in range(5):
        bench.poll(storm(since=1000.0), target=f"pod-{number}")
        bench.push.forget(f"pod-{number}")
    bench.step()
    bench.clock.now = 2000.0
    bench.step()
    assert bench.push._record._by_target == {}


def test_without_an_alertmanager_nothing_is_kept_for_one() -> None:
    bench = Bench(urls=[])
    for number in range(5):
        bench.poll(storm(since=1000.0), target=f"pod-{number}")
    bench.push.forget("pod-0")
    assert bench.push._record._by_target == {}


def test_targets_and_engines_are_told_apart() -> None:
    bench = Bench()
    bench.poll(storm(since=1000.0), target="a")
    bench.poll(storm(since=1000.0), target="b", engine="1")
    down = Alert("TargetDown", Severity.WARNING, 1000.0, "kvwatch cannot scrape vLLM.", "refused")
    bench.push.publish(replace(view(target="c"), alerts=(down,)))
    bench.step()
    (alerts,) = bench.them.take()
    assert [(a["labels"]["alertname"], a["labels"]["target"], a["labels"].get("engine")) for a in alerts] == [
        ("KVWatchPreemptionStorm", "a", "0"),
        ("KVWatchPreemptionStorm", "b", "1"),
        ("KVWatchTargetDown", "c", None),
    ]


def test_many_alerts_go_in_posts_of_64() -> None:
    bench = Bench()
    for number in range(150):
        bench.poll(storm(since=1000.0), target=f"vllm-{number:03}")
    bench.step()
    assert [len(alerts) for alerts in bench.them.take()] == [64, 64, 22]


def test_a_wall_clock_set_back_makes_neither_a_start_in_the_future_nor_an_end_before_it() -> None:
    """It is 1060 - 86400 now; the alert goes on for four resends of 60 s."""
    bench = Bench()
    bench.poll(storm(since=1000.0))
    bench.step()
    bench.them.take()
    bench.clock.stepped = -86400.0
    bench.clock.now = 1060.0
    bench.poll(storm(since=1000.0))
    bench.step()
    ((alert,),) = bench.them.take()
    assert (at(alert["startsAt"]), at(alert["endsAt"])) == (-85340.0, -85100.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"labels": {"a-b": "c"}}, "'a-b' is not a label name", id="label"),
        pytest.param(
            {"basic_auth": BasicAuthSettings(username="u", password_file=Path("p")), "bearer_token_file": "t"},
            "exclude one another",
            id="auth",
        ),
    ],
)
def test_settings_every_alertmanager_would_refuse_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AlertmanagerSettings(**settings)


def test_threads_send_by_themselves_and_stop() -> None:
    bench = Bench()
    bench.push.start()
    bench.poll(storm(since=1000.0))
    for thread in bench.push._threads:
        for _ in range(200):
            if bench.them.counted:
                break
            thread.join(timeout=0.02)
    bench.push.stop()
    assert len(bench.them.take()) == 1
    assert not any(thread.is_alive() for thread in bench.push._threads)


def test_posts_that_hang_do_not_hold_up_the_stop(seconds) -> None:
    asked, released = threading.Barrier(4), threading.Event()

    def hangs(_body: bytes) -> tuple[Outcome, str]:
        asked.wait(10)
        released.wait(10)
        return Outcome.ACCEPTED, ""

    bench = Bench(urls=["http://am-1:9093", "http://am-2:9093", "http://am-3:9093"])
    push = AlertmanagerPush(bench.settings, bench.clock, bench.them, poll_interval=5.0, instance="gpu-1:20058", post_to=lambda *_: hangs)
    push.start()
    push.publish(view(storm(since=1000.0)))
    asked.wait(10)
    try:
        assert seconds(push.stop) < 5.0
    finally:
        released.set()


def test_the_labels_of_a_target_are_on_its_alerts() -> None:
    bench = Bench(labels={"cluster": "eu-1", "pod": "of-kvwatch"})
    bench.push.publish(replace(view(storm(since=0.0)), labels={"namespace": "prod", "pod": "vllm-0"}))
    bench.step()
    ((alert,),) = bench.them.take()
    assert {name: alert["labels"][name] for name in ("cluster", "namespace", "pod")} == {
        "cluster": "eu-1",
        "namespace": "prod",
        "pod": "vllm-0",
    }
