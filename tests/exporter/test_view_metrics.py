from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from exporter_views import NOW, SIGNALS, STORMING, UNPOLLED, VIEW, StillClock, failed
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from kvwatch.config.values import check_labels
from kvwatch.exporter.metrics.catalogue import FAMILIES, TARGET_UP
from kvwatch.exporter.metrics.collector import ViewCollector, samples_of
from kvwatch.model import Alert, Assessment, Cause, Change, EngineId, Severity, State, TargetView, recommended_max_num_seqs

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "metrics.prom"


def exposition(*views: TargetView, clock: StillClock | None = None) -> str:
    return generate_latest(registry_of(*views, clock=clock)).decode()


def registry_of(*views: TargetView, clock: StillClock | None = None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: views, clock or StillClock(), fast_window=30.0, slow_window=120.0))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


ENGINE = {"target": "vllm-0", "model_name": "demo-8b", "engine": "0"}


def series_names(registry: CollectorRegistry) -> set[str]:
    return {sample.name for family in registry.collect() for sample in family.samples}


def test_exposition_of_a_storming_engine_is_the_golden_file_line_by_line():
    assert exposition(VIEW).splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_promtool_finds_nothing_to_say_about_the_exposition(require_tool):
    checked = subprocess.run(
        [require_tool("promtool"), "check", "metrics"], input=exposition(VIEW, UNPOLLED), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_names_are_lower_case_and_ours_and_no_family_comes_twice():
    announced = re.findall(r"^# TYPE (\S+)", exposition(VIEW), re.MULTILINE)
    assert all(re.fullmatch(r"kvwatch_[a-z0-9_]+", name) for name in announced)
    assert [name for name, times in Counter(announced).items() if times > 1] == []
    assert len(announced) == len(FAMILIES)


def test_no_label_of_a_target_can_take_the_place_of_one_of_ours_or_of_prometheus():
    ours = set(re.findall(r'[{,]([a-z_]+)="', GOLDEN.read_text()))
    assert {"line", "signal", "window"} <= ours
    for name in (*ours, "job", "instance"):
        with pytest.raises(ValueError, match=f"the label {name} is kvwatch's own or Prometheus'"):
            check_labels({name: "theirs"})


def test_no_series_comes_twice():
    lines = [line.rsplit(" ", 1)[0] for line in exposition(VIEW, UNPOLLED).splitlines() if not line.startswith("#")]
    assert [line for line, times in Counter(lines).items() if times > 1] == []


def test_openmetrics_says_the_same_as_the_text_format():
    openmetrics = generate_openmetrics(registry_of(VIEW)).decode().splitlines()
    text = exposition(VIEW).splitlines()
    assert sorted(line for line in openmetrics if not line.startswith("#")) == sorted(line for line in text if not line.startswith("#"))


@pytest.mark.parametrize("state", list(State))
def test_state_is_one_hot(state):
    registry = registry_of(replace(VIEW, assessments=(replace(STORMING, verdict=replace(STORMING.verdict, state=state)),)))
    assert {other: value(registry, "kvwatch_state", **ENGINE, state=other.value) for other in State} == {
        other: float(other is state) for other in State
    }


def test_every_cause_is_exported_and_exactly_one_is_set():
    registry = registry_of(VIEW)
    values = {cause: value(registry, "kvwatch_cause", **ENGINE, cause=cause.value) for cause in Cause}
    assert [cause for cause, number in values.items() if number == 1.0] == [Cause.PREEMPTING]
    assert None not in values.values()


def test_what_is_absent_has_no_series_rather_than_zero():
    bare = replace(
        SIGNALS, running=None, kv_usage=None, recompute_ratio=None, e2e_latency=None, slow=replace(SIGNALS.slow, preemption_ratio=None)
    )
    registry = registry_of(replace(VIEW, assessments=(replace(STORMING, signals=bare, advice=()),)))
    gone = {
        "kvwatch_requests_running",
        "kvwatch_kv_cache_usage_ratio",
        "kvwatch_recompute_ratio",
        "kvwatch_e2e_request_latency_seconds",
        "kvwatch_recommended_max_num_seqs",
    }
    assert gone & series_names(registry) == set()
    assert value(registry, "kvwatch_preemption_ratio", **ENGINE, window="slow") is None
    assert value(registry, "kvwatch_preemption_ratio", **ENGINE, window="fast") == 0.4
    assert value(registry, "kvwatch_requests_waiting", **ENGINE) == 7.0


def test_numbers_that_are_none_are_not_exported_as_nan():
    registry = registry_of(replace(VIEW, assessments=(replace(STORMING, signals=replace(SIGNALS, kv_usage=float("nan"))),)))
    assert value(registry, "kvwatch_kv_cache_usage_ratio", **ENGINE) is None


OWN = {
    "kvwatch_state",
    "kvwatch_cause",
    "kvwatch_state_seconds_total",
    "kvwatch_state_transitions_total",
    "kvwatch_target_up",
    "kvwatch_last_successful_scrape_timestamp_seconds",
    "kvwatch_target_scrape_duration_seconds",
    "kvwatch_collect_faults_total",
}
"""What is known without evidence from the target."""


class TestStaleness:
    def test_a_view_of_fourteen_seconds_at_a_one_second_interval_is_fresh(self):
        clock = StillClock(now=NOW - 2.0 + 15.0)
        registry = registry_of(replace(VIEW, interval=1.0), clock=clock)
        assert value(registry, "kvwatch_target_up", target="vllm-0") == 1.0
        assert value(registry, "kvwatch_requests_running", **ENGINE) == 12.0

    @pytest.mark.parametrize(
        ("interval", "age"), [pytest.param(1.0, 15.1, id="at least 15 s"), pytest.param(10.0, 30.1, id="three intervals")]
    )
    def test_derived_series_vanish_at_collect_time_without_anybody_writing(self, interval, age):
        clock = StillClock()
        registry = registry_of(replace(VIEW, interval=interval), clock=clock)
        assert value(registry, "kvwatch_requests_running", **ENGINE) == 12.0
        clock.now = NOW - 2.0 + age
        assert series_names(registry) == OWN | {"kvwatch_alert_condition"}
        assert value(registry, "kvwatch_target_up", target="vllm-0") == 0.0
        assert value(registry, "kvwatch_last_successful_scrape_timestamp_seconds", target="vllm-0") == 1_799_999_998.0
        assert value(registry, "kvwatch_state", **ENGINE, state="unknown") == 1.0
        assert value(registry, "kvwatch_state", **ENGINE, state="kv_bound") == 0.0
        assert value(registry, "kvwatch_cause", **ENGINE, cause="stale") == 1.0
        assert value(registry, "kvwatch_state_seconds_total", **ENGINE, state="kv_bound") == 60.0

    def test_an_alert_of_a_stale_engine_is_neither_firing_nor_quiet(self):
        registry = registry_of(VIEW, clock=StillClock(now=NOW + 60.0))
        assert value(registry, "kvwatch_alert_active", **ENGINE, alert="PreemptionStorm", severity="critical") is None
        assert value(registry, "kvwatch_alert_active", target="vllm-0", alert="TargetDown", severity="warning") is None

    def test_of_a_stale_engine_no_condition_is_known_but_that_kvwatch_is_blind(self):
        registry = registry_of(VIEW, clock=StillClock(now=NOW + 60.0))
        conditions = [s for family in registry.collect() for s in family.samples if s.name == "kvwatch_alert_condition"]
        assert [(s.labels, s.value) for s in conditions] == [({"target": "vllm-0", **ENGINE, "alert": "WatcherBlind"}, 1.0)]

    def test_a_failed_poll_that_is_fresh_takes_the_numbers_away_and_keeps_its_cause(self):
        registry = registry_of(failed())
        assert series_names(registry) == OWN | {"kvwatch_signal_source_info", "kvwatch_alert_active", "kvwatch_alert_condition"}
        assert value(registry, "kvwatch_target_up", target="vllm-0") == 0.0
        assert value(registry, "kvwatch_cause", **ENGINE, cause="unreachable") == 1.0
        assert value(registry, "kvwatch_alert_active", **ENGINE, alert="PreemptionStorm", severity="critical") == 0.0
        assert value(registry, "kvwatch_alert_condition", **ENGINE, alert="PreemptionStorm") == 1.0


def test_a_target_that_was_never_polled_is_down_and_never_succeeded():
    registry = registry_of(UNPOLLED)
    assert value(registry, "kvwatch_target_up", target="vllm-1") == 0.0
    assert value(registry, "kvwatch_last_successful_scrape_timestamp_seconds", target="vllm-1") == 0.0


def test_a_target_without_a_known_engine_is_unknown_under_empty_engine_labels():
    nobody = replace(STORMING, verdict=replace(STORMING.verdict, engine=None, state=State.UNKNOWN, cause=Cause.UNREACHABLE), signals=None)
    registry = registry_of(replace(VIEW, assessments=(nobody,)))
    assert value(registry, "kvwatch_state", target="vllm-0", model_name="", engine="", state="unknown") == 1.0


def test_every_known_alert_is_zero_until_it_fires():
    active = {
        (sample.labels["alert"], sample.labels["severity"]): sample.value
        for family in registry_of(VIEW).collect()
        if family.name == "kvwatch_alert_active"
        for sample in family.samples
    }
    assert active == {
        ("PreemptionStorm", "critical"): 1.0,
        ("EngineStalled", "critical"): 0.0,
        ("KVBound", "warning"): 0.0,
        ("KVScaleOut", "warning"): 0.0,
        ("ComputeBound", "warning"): 0.0,
        ("LatencyObjectiveMissed", "warning"): 0.0,
        ("BaselineRegressed", "warning"): 0.0,
        ("TargetDown", "warning"): 0.0,
        ("WatcherBlind", "warning"): 0.0,
    }


def test_an_engine_that_its_target_no_longer_reports_keeps_its_alerts():
    gone = replace(VIEW.assessments[0].verdict, state=State.UNKNOWN, cause=Cause.STALE)
    blind = Alert("WatcherBlind", Severity.WARNING, NOW, "blind", "since five minutes")
    registry = registry_of(replace(VIEW, assessments=(Assessment(gone, None, (blind,)),)))
    assert value(registry, "kvwatch_alert_active", **ENGINE, alert="WatcherBlind", severity="warning") == 1.0
    assert value(registry, "kvwatch_alert_active", **ENGINE, alert="PreemptionStorm", severity="critical") == 0.0


def test_an_alert_about_the_target_carries_no_engine():
    down = Alert(name="TargetDown", severity=Severity.WARNING, since=NOW, summary="s", description="d")
    registry = registry_of(replace(failed(), alerts=(down,)))
    assert value(registry, "kvwatch_alert_active", target="vllm-0", alert="TargetDown", severity="warning") == 1.0


@pytest.mark.parametrize(
    ("lever", "proposed", "expected"),
    [
        pytest.param("--max-num-seqs", "11", 11, id="the lever"),
        pytest.param("--gpu-memory-utilization", "0.95", None, id="another lever"),
        pytest.param("--max-num-seqs", None, None, id="no number proposed"),
        pytest.param("--max-num-seqs", "fewer", None, id="no number but a word"),
    ],
)
def test_recommended_max_num_seqs_is_the_number_advised(lever, proposed, expected):
    change = Change(lever=lever, current=None, proposed=proposed, reason="", effect="", caution="")
    assert recommended_max_num_seqs([change]) == expected


def test_a_view_that_cannot_be_read_costs_nobody_else_their_series():
    broken = replace(VIEW, name="broken", assessments=(None,))  # type: ignore[arg-type]
    registry = registry_of(broken, VIEW)
    with capture_logs() as logged:
        assert value(registry, "kvwatch_target_up", target="broken") is None
    assert [(entry["event"], entry["target"]) for entry in logged] == [("exporter.view_dropped", "broken")]
    assert value(registry, "kvwatch_target_up", target="vllm-0") == 1.0
    assert value(registry, "kvwatch_collect_faults_total") == 3.0, "one fault for each of the three collections so far"


def test_two_collectors_of_the_same_families_are_refused():
    registry = registry_of(VIEW)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(ViewCollector(lambda: (), StillClock(), fast_window=30.0, slow_window=120.0))


def test_views_that_cannot_be_had_at_all_leave_an_empty_exposition_and_a_count():
    def views():
        raise RuntimeError("gone")

    registry = CollectorRegistry()
    registry.register(ViewCollector(views, StillClock(), fast_window=30.0, slow_window=120.0))
    assert series_names(registry) == {"kvwatch_collect_faults_total"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param('quo"te\\back\nline,comma}', id="syntax"),
        pytest.param("lone \udce9 surrogate", id="surrogate"),
        pytest.param("\u05d3\u05d5\u05d2\u202e\U0001f642" * 1000, id="long, right to left, emoji"),
        pytest.param("", id="empty"),
    ],
)
def test_hostile_names_leave_an_exposition_that_parses(name):
    hostile = replace(STORMING, verdict=replace(STORMING.verdict, engine=EngineId(model_name=name, engine=name)))
    text = exposition(replace(VIEW, name=name, assessments=(hostile,)))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families[TARGET_UP.name].samples[0].labels["target"] == name.encode("utf-8", "replace").decode()


def test_five_hundred_targets_are_collected_in_well_under_a_second():
    views = tuple(replace(VIEW, name=f"vllm-{number}") for number in range(500))
    registry = registry_of(*views)
    started = time.process_time()
    text = generate_latest(registry)
    assert time.process_time() - started < 1.0
    assert text.count(b"kvwatch_state{") == 500 * len(State)


def test_the_labels_of_a_target_are_on_each_of_its_series():
    labelled = replace(VIEW, labels={"namespace": "prod", "pod": "vllm-0"})
    samples = list(samples_of(labelled, NOW))
    assert samples
    labels = [{**one.whose, **one.which} for one in samples]
    assert {(one["namespace"], one["pod"], one["target"]) for one in labels} == {("prod", "vllm-0", "vllm-0")}
