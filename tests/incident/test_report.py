"""The report of an incident: its arithmetic on rows worked out by hand, and the document in a browser."""

from __future__ import annotations

import json
import re
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from kvwatch.commands import cli
from kvwatch.config.policy import Thresholds
from kvwatch.config.settings import Settings
from kvwatch.incident.replay import ReplayRow
from kvwatch.incident.report import build_report
from kvwatch.incident.report_html import as_html
from kvwatch.incident.report_text import as_markdown, headline, lasting
from kvwatch.model import Alert, Assessment, Cause, Change, EngineId, Severity, Signals, State, Verdict, Window

ENGINE = EngineId("demo-8b", "0")
NOON = 1769860800.0  # 2026-01-31 12:00:00 UTC
ADVICE = Change(lever="--max-num-seqs", current="64", proposed="10", reason="5 120 KV tokens ÷ 512", effect="", caution="")


def signals(*, ratio, **numbers):
    fast, slow = Window(30.0, 7), Window(120.0, 9, preemption_ratio=ratio)
    return Signals(at=0.0, recent=fast, fast=fast, slow=slow, **numbers)


def row(minute, cause, *, target="vllm", engine=ENGINE, alerts=(), usage=0.5, ratio=0.0, waiting=0.0, redone=None, advice=()):
    fired = tuple(Alert(name, Severity.CRITICAL, 0.0, "", "") for name in alerts)
    numbers = None if cause.state == "unknown" else signals(kv_usage=usage, waiting=waiting, ratio=ratio, recompute_ratio=redone)
    verdict = Verdict(engine, cause.state, cause, (f"{cause} it is",), 0.0)
    return ReplayRow(NOON + 60 * minute, target, Assessment(verdict, numbers, alerts=fired, advice=advice))


def night():
    """Ten minutes of calm, fourteen of a storm (the ratio peaks at 0.2), six of calm; one row a minute."""
    rows = [row(n, Cause.OK if n % 2 else Cause.IDLE) for n in range(10)]
    for n in range(10, 24):
        fires = ("PreemptionStorm",) if n >= 12 else ()
        peak = 0.2 if n == 15 else 0.12
        storm = {"usage": 0.99, "ratio": peak, "waiting": 30.0, "redone": 0.31, "advice": (ADVICE,)}
        rows.append(row(n, Cause.PREEMPTING, alerts=fires, **storm))
    return rows + [row(n, Cause.OK) for n in range(24, 30)]


def test_a_span_lasts_until_the_next_verdict_and_the_last_one_a_spacing_more():
    (report,) = build_report(night(), Settings())
    assert [(change.cause, (change.t - NOON) / 60, (change.until - NOON) / 60) for change in report.changes] == [
        (Cause.IDLE, 0, 10),  # work that comes and goes is no change
        (Cause.PREEMPTING, 10, 24),
        (Cause.OK, 24, 30),
    ]
    assert report.seconds_in(State.KV_BOUND) == 14 * 60


def test_the_headline_says_what_was_worst_in_figures_that_were_computed():
    (report,) = build_report(night(), Settings())
    assert headline(report) == (
        "KV-bound (preempting) for 14 min from 12:10:00 UTC; at the worst 20 % of the requests that left the running batch had been "
        "preempted; up to about 31 % of the work was done twice (estimate); up to 30 requests waited."
    )
    assert "from 13:10:00 Europe/Berlin" in headline(report, ZoneInfo("Europe/Berlin"))


def test_of_several_such_times_the_longest_is_told_and_how_many_there_were():
    kinds = [Cause.OK] * 5 + [Cause.ADMISSION] * 3 + [Cause.OK] * 5 + [Cause.ADMISSION] * 7 + [Cause.OK] * 5
    (report,) = build_report([row(n, cause) for n, cause in enumerate(kinds)], Settings())
    assert headline(report).startswith("KV-bound (admission) for 7 min from 12:13:00 UTC, the longest of 2 times")


def test_a_report_that_is_not_of_one_day_says_the_day_with_each_time():
    rows = [row(n, Cause.ADMISSION if 715 <= n < 725 else Cause.OK) for n in range(700, 740)]
    (report,) = build_report(rows, Settings())
    assert "from 01-31 23:55:00 UTC" in headline(report)
    assert "| 01-31 23:55:00 | 10 min | KV-bound |" in as_markdown([report])
    assert "from 01-31 23:55:00" in as_html([report])
    assert "from 23:55" not in as_html([report])
    # Two hours to the west it is one day.
    assert "from 21:55:00" in headline(report, ZoneInfo("Etc/GMT+2"))


def test_an_alert_fired_from_its_first_row_to_its_last_and_the_plain_rule_after_five_minutes():
    (report,) = build_report(night(), Settings())
    assert [(alert.name, (alert.t - NOON) / 60, (alert.until - NOON) / 60) for alert in report.alerts] == [("PreemptionStorm", 12, 23)]
    assert [((span.t - NOON) / 60, (span.until - NOON) / 60) for span in report.naive] == [(15, 24)]


def test_usage_that_swings_never_satisfies_the_plain_rule():
    rows = [row(n, Cause.PREEMPTING, usage=0.80 if n % 4 == 3 else 1.0) for n in range(60)]
    (report,) = build_report(rows, Settings())
    assert report.naive == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(n, Cause.OK) for n in range(10)], "Nothing held it back: healthy for 10 min."),
        (
            [row(0, Cause.WARMING_UP), *(row(n, Cause.OK) for n in range(1, 11))],
            "Nothing held it back: healthy for 10 min, unknown for 1 min.",
        ),
        ([row(n, Cause.UNREACHABLE, engine=None) for n in range(5)], "Nothing can be said: unreachable it is."),
        (
            [*(row(n, Cause.SEQUENCE_SLOTS) for n in range(40)), *(row(n, Cause.ADMISSION) for n in range(40, 45))],
            "KV-bound (admission) for 5 min from 12:40:00 UTC.",
        ),
    ],
)
def test_a_calm_a_blind_and_a_mixed_night(rows, said):
    assert headline(build_report(rows, Settings())[0]).startswith(said)


def test_every_engine_has_a_report_and_a_target_without_one_too():
    rows = [row(0, Cause.WARMING_UP, engine=None), row(1, Cause.OK), row(1, Cause.OK, engine=EngineId("demo-8b", "1"))]
    rows += [row(2, Cause.UNREACHABLE, target="other", engine=None)]
    assert [report.name for report in build_report(rows, Settings())] == ["other", "vllm, engine 0 of demo-8b", "vllm, engine 1 of demo-8b"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (40, "40 s"), (135, "2 min 15 s"), (600, "10 min"), (845, "14 min"), (7500, "2 h 5 min"), (7200, "2 h")],
)
def test_how_long_in_words(seconds, words):
    assert lasting(seconds) == words


def test_markdown_holds_the_verdicts_the_alerts_and_the_advice_of_then():
    text = as_markdown(build_report(night(), Settings()), UTC)
    assert "| 12:10:00 | 14 min | KV-bound | Preempting | preempting it is | --max-num-seqs 64 -> 10: 5 120 KV tokens ÷ 512 |" in text
    assert "| a plain rule, cache > 95 % for 5m | 12:15:00 to 12:24:00 |" in text


def test_the_document_needs_nothing_from_elsewhere_and_escapes_what_targets_say():
    hostile = [row(n, Cause.OK, target="<script>alert(1)</script>", engine=EngineId("<b>&", "0")) for n in range(3)]
    html = as_html(build_report(hostile, Settings()), UTC)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"(?:src|href)=|url\(", html)


def test_a_day_at_fifteen_seconds_is_below_a_megabyte():
    rows = [row(n / 4, Cause.PREEMPTING if n % 400 > 300 else Cause.OK, ratio=0.1, waiting=float(n % 50)) for n in range(5760)]
    assert len(as_html(build_report(rows, Settings()), UTC).encode()) < 1_000_000


COARSE = "and do not show a queue or a full cache that comes and goes between two of them"
STORM = "or the beginning or end of a storm more exactly than to two of them"


@pytest.mark.parametrize(
    ("seconds", "stall", "said"),
    [
        (5.0, 10.0, None),
        (14.0, 10.0, None),
        (14.998, 10.0, f"scrapes are 15 s apart {COARSE}, or a stall shorter than that"),
        (15.0, 60.0, f"scrapes are 15 s apart {COARSE}"),
        (60.0, 60.0, f"scrapes are 60 s apart {COARSE}, {STORM}"),
    ],
)
@pytest.mark.parametrize("document", [as_html, as_markdown])
def test_a_report_says_what_its_scrapes_are_too_far_apart_to_show(document, seconds, stall, said):
    settings = Settings(thresholds=Thresholds(stall=stall))
    text = document(build_report([row(n * seconds / 60, Cause.OK) for n in range(6)], settings), UTC)
    assert text.count("apart and do not show") == (said is not None)
    assert said is None or f"{said}." in text


@pytest.mark.e2e
@pytest.mark.parametrize(("size", "scheme"), [((1400, 1000), "light"), ((390, 844), "light"), ((1400, 1000), "dark")])
def test_in_a_browser_it_fits_and_axe_finds_nothing_serious(browser, axe, tmp_path, size, scheme):
    path = tmp_path / "report.html"
    html = as_html(build_report(night(), Settings()), UTC)
    path.write_text(re.sub(r"<meta http-equiv=.*?>", "", html))  # the policy would keep axe out
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    context.close()
    assert [issue["id"] for issue in found["violations"] if issue["impact"] in ("serious", "critical")] == []


def test_replay_writes_the_report_of_a_recording(repository, tmp_path, capsys):
    recording = str(repository / "tests" / "data" / "recordings" / "kv_storm.jsonl.xz")
    target = tmp_path / "night.html"
    assert cli.main(["replay", recording, "--interval", "5s", "--format", "html", "-o", str(target)]) == 0
    assert "KV-bound (preempting) for" in target.read_text()
    assert cli.main(["replay", recording, "--interval", "5s", "--format", "md", "--timezone", "Asia/Tokyo"]) == 0
    assert "Asia/Tokyo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["--timezone", "Mars/Olympus"], "there is no such zone"), (["-o", "/nowhere/report.html"], "/nowhere/report.html: No such file")],
)
def test_a_mistake_leaves_no_half_written_report(repository, capsys, arguments, why):
    recording = str(repository / "tests" / "data" / "recordings" / "stats_disabled.jsonl.xz")
    assert cli.main(["replay", recording, "--format", "html", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_recording_without_a_scrape_has_no_report(tmp_path, capsys):
    path = tmp_path / "empty.jsonl"
    path.write_text(json.dumps({"kvwatch_recording": 1, "target": "x"}) + "\n")
    assert cli.main(["replay", str(path), "--format", "html"]) == 2
    assert "not one scrape" in capsys.readouterr().err
