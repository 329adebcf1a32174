"""What the log says of a change from one view to the next, and what it does not say."""

from __future__ import annotations

import pytest

from kvwatch.daemon.watch_log import announce
from kvwatch.model import (
    Alert,
    Assessment,
    Cause,
    Change,
    EngineId,
    FailureReason,
    ScrapeFailure,
    Severity,
    State,
    TargetView,
    Verdict,
)

ZERO, ONE = EngineId("demo-8b", "0"), EngineId("demo-8b", "1")
STORM = Alert("PreemptionStorm", Severity.CRITICAL, 1.0, "Requests are preempted", "42 % of the leaving requests were preempted")
BOUND = Alert("KVBound", Severity.WARNING, 1.0, "KV cache is the limit", "12 wait")
DOWN = Alert("TargetDown", Severity.WARNING, 1.0, "vLLM does not answer", "timeout")
LEVER = Change(
    lever="--max-num-seqs", current="32", proposed="11", reason="24 576 KV tokens", effect="fewer preemptions", caution="longer queue"
)
OTHER = Change(
    lever="add replicas", current=None, proposed=None, reason="demand is 1.4 pools", effect="shorter queue", caution="costs a GPU"
)


def said(state, cause, *, engine=ZERO, alerts=(), advice=()):
    return Assessment(Verdict(engine, state, cause, ("the evidence",), 0.0), None, alerts=alerts, advice=advice)


def view(*assessments, failure=None, alerts=()):
    return TargetView("demo", "http://demo/metrics", 5.0, at=1.0, failure=failure, assessments=assessments, alerts=alerts)


def failed(reason):
    return ScrapeFailure(1.0, reason, "why")


HEALTHY = said(State.HEALTHY, Cause.OK)
KV = said(State.KV_BOUND, Cause.PREEMPTING)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(view(HEALTHY), view(HEALTHY), [], id="steady"),
        pytest.param(view(HEALTHY), view(said(State.HEALTHY, Cause.IDLE)), [], id="cause-within-the-state"),
        pytest.param(view(), view(HEALTHY), [("engine.state_changed", "info")], id="first-word"),
        pytest.param(view(HEALTHY), view(KV), [("engine.state_changed", "warning")], id="kv-bound"),
        pytest.param(view(HEALTHY), view(said(State.COMPUTE_BOUND, Cause.STALLED)), [("engine.state_changed", "warning")], id="stalled"),
        pytest.param(view(KV), view(HEALTHY), [("engine.state_changed", "info")], id="healthy-again"),
        pytest.param(
            view(HEALTHY, said(State.HEALTHY, Cause.OK, engine=ONE)),
            view(HEALTHY, said(State.KV_BOUND, Cause.ADMISSION, engine=ONE)),
            [("engine.state_changed", "warning")],
            id="one-engine-of-two",
        ),
        pytest.param(view(HEALTHY), view(said(State.UNKNOWN, Cause.UNREACHABLE, engine=None)), [], id="no-engine-is-no-state"),
        pytest.param(view(), view(failure=failed(FailureReason.DNS)), [("target.failed", "warning")], id="failed"),
        pytest.param(view(failure=failed(FailureReason.DNS)), view(failure=failed(FailureReason.DNS)), [], id="still-failed"),
        pytest.param(
            view(failure=failed(FailureReason.DNS)),
            view(failure=failed(FailureReason.TLS)),
            [("target.failed", "warning")],
            id="other-reason",
        ),
        pytest.param(view(failure=failed(FailureReason.DNS)), view(), [("target.recovered", "info")], id="recovered"),
        pytest.param(view(HEALTHY), view(said(State.HEALTHY, Cause.OK, alerts=(STORM,))), [("alert.fired", "error")], id="page"),
        pytest.param(view(HEALTHY), view(said(State.HEALTHY, Cause.OK, alerts=(BOUND,))), [("alert.fired", "warning")], id="warning"),
        pytest.param(
            view(said(State.HEALTHY, Cause.OK, alerts=(STORM,))),
            view(said(State.HEALTHY, Cause.OK, alerts=(STORM,))),
            [],
            id="still-firing",
        ),
        pytest.param(view(said(State.HEALTHY, Cause.OK, alerts=(STORM,))), view(HEALTHY), [("alert.resolved", "info")], id="resolved"),
        pytest.param(view(said(State.HEALTHY, Cause.OK, alerts=(STORM,))), view(), [("alert.resolved", "info")], id="engine-gone"),
        pytest.param(view(), view(alerts=(DOWN,)), [("alert.fired", "warning")], id="target-down"),
        pytest.param(view(alerts=(DOWN,)), view(), [("alert.resolved", "info")], id="target-up"),
    ],
)
def test_changes_are_told_and_nothing_else(events, before, after, expected):
    announce(before, after)
    assert [(e["event"], e["log_level"]) for e in events if e["log_level"] != "debug"] == expected


def test_a_transition_carries_what_a_person_needs(events):
    announce(view(HEALTHY), view(said(State.KV_BOUND, Cause.PREEMPTING, advice=(LEVER, OTHER))))
    event = next(e for e in events if e["event"] == "engine.state_changed")
    assert event == {
        "event": "engine.state_changed",
        "log_level": "warning",
        "target": "demo",
        "model_name": "demo-8b",
        "engine": "0",
        "state": "kv_bound",
        "cause": "preempting",
        "was": "healthy",
        "evidence": ("the evidence",),
        "advice": "--max-num-seqs 32 -> 11: 24 576 KV tokens",
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(LEVER, "--max-num-seqs 32 -> 11: 24 576 KV tokens", id="from-to"),
        pytest.param(OTHER, "add replicas: demand is 1.4 pools", id="no-value"),
        pytest.param(
            Change(lever="--max-num-seqs", current=None, proposed="11", reason="because", effect="", caution=""),
            "--max-num-seqs -> 11: because",
            id="present-value-unknown",
        ),
    ],
)
def test_advice_in_one_line(events, change, told):
    announce(view(HEALTHY), view(said(State.KV_BOUND, Cause.PREEMPTING, advice=(change,))))
    assert next(e for e in events if e["event"] == "engine.state_changed")["advice"] == told


def test_an_alert_carries_its_words(events):
    announce(view(HEALTHY), view(said(State.HEALTHY, Cause.OK, alerts=(STORM,))))
    fired = next(e for e in events if e["event"] == "alert.fired")
    assert (fired["alert"], fired["severity"], fired["description"]) == ("PreemptionStorm", "critical", STORM.description)
    assert (fired["target"], fired["model_name"], fired["engine"]) == ("demo", "demo-8b", "0")
