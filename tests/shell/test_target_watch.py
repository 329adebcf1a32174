"""A tick of one target: what is published, counted and told, whatever the target and kvwatch itself do."""

from __future__ import annotations

import pytest
from shell_fakes import ENGINE, FakeClock, scrape, snapshot

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings, TargetSettings
from kvwatch.daemon.target_watch import TargetWatch
from kvwatch.errors import ScrapeError
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import CAUSES, Cause, EngineId, FailureReason, State

INTERVAL = 5.0


class Watched:
    """A watch whose target says what the test lines up."""

    def __init__(self, judge=None):
        self.clock = FakeClock()
        self.telemetry = Telemetry()
        self.telemetry.target_added("demo")
        self.published = []
        self.answers = []
        self.duration = 0.0
        target = TargetSettings(url="http://demo:8000/metrics", name="demo")
        self.watch = TargetWatch(
            target,
            INTERVAL,
            read=self._read,
            judge=judge or judge_for(Settings(), target),
            clock=self.clock,
            telemetry=self.telemetry,
            publish=lambda _, view: self.published.append(view),
            others=tuple,
        )

    def _read(self):
        self.clock.now += self.duration
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer(self.clock.now) if callable(answer) else answer

    def tick(self, answer):
        """A tick, an interval after the one before."""
        self.clock.now += INTERVAL
        self.answers.append(answer)
        self.watch.tick()
        return self.watch.view

    def failures(self):
        """Counted failures by reason, without those that did not happen."""
        counted = {
            reason: self.telemetry.registry.get_sample_value(
                "kvwatch_target_scrape_failures_total", {"target": "demo", "reason": reason.value}
            )
            for reason in FailureReason
        }
        return {reason: count for reason, count in counted.items() if count}


@pytest.fixture
def watched():
    return Watched()


def timeout():
    return ScrapeError(FailureReason.TIMEOUT, "no whole answer within 4 s")


def test_before_the_first_tick_nothing_is_known(watched):
    view = watched.watch.view
    assert (view.name, view.url, view.at, view.assessments) == ("demo", "http://demo:8000/metrics", None, ())


def test_a_success_is_published_with_its_times(watched):
    watched.duration = 0.25
    view = watched.tick(scrape)
    assert watched.published == [view]
    assert (view.at, view.last_success_at) == (1005.25, 1005.25)
    assert view.last_success_unix == 1_700_000_005.25
    assert view.scrape_seconds == 0.25
    assert view.failure is None
    assert view.sources == {"running": "vllm:num_requests_running"}
    assert [assessment.verdict.engine for assessment in view.assessments] == [ENGINE]


def test_a_failure_keeps_when_it_last_went_well_and_what_it_read(watched):
    well = watched.tick(scrape)
    view = watched.tick(timeout())
    assert (view.last_success_at, view.last_success_unix) == (well.at, well.last_success_unix)
    assert view.at == 1010.0
    assert view.sources == well.sources
    assert view.failure is not None
    assert (view.failure.reason, view.failure.detail) == (FailureReason.TIMEOUT, "no whole answer within 4 s")
    assert [(a.verdict.state, a.verdict.cause) for a in view.assessments] == [(State.UNKNOWN, Cause.UNREACHABLE)]
    assert watched.failures() == {FailureReason.TIMEOUT: 1.0}


def test_a_failure_is_told_once_and_its_end_too(watched, events):
    for answer in (scrape, timeout(), timeout(), timeout(), scrape, scrape):
        watched.tick(answer)
    told = [(e["event"], e["log_level"]) for e in events if e["event"].startswith("target.") and e["log_level"] != "debug"]
    assert told == [("target.failed", "warning"), ("target.recovered", "info")]
    failed = next(e for e in events if e["event"] == "target.failed")
    assert (failed["target"], failed["reason"], failed["detail"]) == ("demo", "timeout", "no whole answer within 4 s")


def test_another_reason_is_told_again(watched, events):
    for answer in (timeout(), ScrapeError(FailureReason.CONNECT, "Connection refused"), timeout()):
        watched.tick(answer)
    assert [e["reason"] for e in events if e["event"] == "target.failed"] == ["timeout", "connect", "timeout"]


class BrokenJudge:
    """A judge of which one half or both are broken."""

    def __init__(self, *, failed=False):
        self._good = judge_for(Settings())
        self._failed = failed

    def scraped(self, scrape, others):
        raise ZeroDivisionError("a secret of the body")

    def failed(self, failure, others):
        if self._failed:
            raise KeyError("both halves")
        return self._good.failed(failure, others)


@pytest.mark.parametrize(
    ("judge", "answer", "error"),
    [
        pytest.param(None, RuntimeError("a secret of the body"), "RuntimeError", id="read"),
        pytest.param(BrokenJudge(), scrape, "ZeroDivisionError", id="judge"),
        pytest.param(BrokenJudge(failed=True), scrape, "ZeroDivisionError", id="judge-of-failures-too"),
        pytest.param(None, MemoryError(), "MemoryError", id="memory"),
    ],
)
def test_a_fault_of_ours_is_logged_counted_and_shown(events, judge, answer, error):
    watched = Watched(judge)
    view = watched.tick(answer)
    assert view.failure is not None
    assert (view.failure.reason, view.failure.detail) == (FailureReason.INTERNAL, f"kvwatch failed: {error}")
    assert watched.failures() == {FailureReason.INTERNAL: 1.0}
    assert watched.published == [view]
    broke = [e for e in events if e["event"] == "scrape.broke"]
    assert broke[0]["log_level"] == "error"
    assert broke[0]["exc_info"]
    assert [e["reason"] for e in events if e["event"] == "target.failed"] == ["internal"]


def test_after_a_fault_of_ours_the_watch_goes_on(watched):
    watched.tick(RuntimeError())
    view = watched.tick(scrape)
    assert view.failure is None
    assert view.last_success_at == 1010.0


def test_a_steady_state_is_debug_only(watched, events):
    for _ in range(10):
        watched.tick(scrape)
    events.clear()
    for _ in range(20):
        watched.tick(scrape)
    assert {e["log_level"] for e in events} == {"debug"}
    assert [e["event"] for e in events] == ["target.polled"] * 20


def test_every_transition_is_told_once(watched, events):
    for _ in range(10):
        watched.tick(scrape)
    for _ in range(3):
        watched.tick(timeout())
    for _ in range(10):
        watched.tick(scrape)
    told = [(e["was"], e["state"]) for e in events if e["event"] == "engine.state_changed"]
    assert told[0] == (None, "unknown")
    assert ("unknown", "healthy") in told
    assert ("healthy", "unknown") in told
    assert all(was != state for was, state in told)
    assert [was for was, _ in told[1:]] == [state for _, state in told[:-1]]
    view = watched.watch.view
    assert view.assessments[0].transitions == len(told) - 1


def test_every_told_cause_belongs_to_its_state(watched, events):
    for answer in (scrape, scrape, timeout(), scrape, ScrapeError(FailureReason.STATS_DISABLED, "no stats"), scrape):
        watched.tick(answer)
    for event in events:
        if event["event"] == "engine.state_changed":
            assert event["cause"] in CAUSES[State(event["state"])]


def test_an_engine_that_vanishes_is_stale_and_comes_back(watched, events):
    def without_engine(at):
        return scrape(at, snapshot(at, engine=EngineId("demo-8b", "1")))

    def both(at):
        return scrape(at, snapshot(at), snapshot(at, engine=EngineId("demo-8b", "1")))

    for answer in (both, both, both, both, without_engine):
        view = watched.tick(answer)
    assert (view.assessments[0].verdict.engine, view.assessments[0].verdict.cause) == (ENGINE, Cause.STALE)
    for _ in range(5):
        view = watched.tick(both)
    assert {a.verdict.state for a in view.assessments} == {State.HEALTHY}


@pytest.mark.parametrize("step", ["kvwatch.advice.remembered.advise", "kvwatch.classifier.target.pool_tokens"])
def test_what_broke_for_an_engine_is_counted_and_logged_and_the_view_is_published_all_the_same(monkeypatch, events, step):
    def breaks(*_, **__):
        raise ZeroDivisionError("an error of ours")

    monkeypatch.setattr(step, breaks)
    watched = Watched()
    view = watched.tick(lambda at: scrape(at, snapshot(at)))
    assert [event["target"] for event in events if event["event"] == "engine.broke"] == ["demo"]
    assert view.failure is None
    assert [one.verdict.engine for one in view.assessments] == [ENGINE]
    assert watched.telemetry.registry.get_sample_value("kvwatch_engine_faults_total", {"target": "demo"}) == 1
