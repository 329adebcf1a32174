"""How many requests may run at once has one answer at one moment, whoever is asked: advice, alert, metric, JSON, page, check, plan."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import decimated
from prometheus_client import CollectorRegistry

from kvwatch.advice.steady import differ
from kvwatch.assess import judge_for
from kvwatch.capacity.concurrency import SequenceSizes, concurrency_limit
from kvwatch.check.render import render_plain
from kvwatch.check.report import Report, capacity
from kvwatch.config.policy import KnownConfig
from kvwatch.config.settings import Settings
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.page import StatusPage
from kvwatch.exporter.web.status import status_document
from kvwatch.incident.recording import Reader
from kvwatch.incident.replay import rows_of
from kvwatch.model import Cause, TargetView, recommended_max_num_seqs
from kvwatch.plan.options import Pool
from kvwatch.plan.plan import build_plan
from kvwatch.plan.sources import scrape_live

POLL = 5.0
MIXED = 60.0
"""Seconds of a storm in which the daemon's means are half of the time before it."""
RECORDINGS = sorted(path.name.removesuffix(".jsonl.xz") for path in (Path(__file__).parents[1] / "data" / "recordings").glob("*.xz"))


def rows(path):
    """Every page of a recording, polled each five seconds, and what is said of its engines."""
    judge = judge_for(Settings(), interval=POLL)
    with Reader(path, pytest.fail) as entries:
        for entry in decimated(entries, POLL):
            yield entry, [row.assessment for row in rows_of(entry, "demo", judge)]


def view(assessment, at):
    return TargetView("demo", "http://demo/metrics", POLL, at=at, last_success_at=at, assessments=(assessment,))


class Clock:
    def __init__(self, at):
        self.at = at

    def monotonic(self):
        return self.at

    unix = monotonic


def said(assessment, at):
    """What each surface says the server holds and what it advises, by surface."""
    clock = Clock(at)
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: (view(assessment, at),), clock, fast_window=30.0, slow_window=120.0))
    series = {sample.name: sample.value for family in registry.collect() for sample in family.samples}
    told = status_document((view(assessment, at),), clock)["targets"][0]["engines"][0]
    page = re.sub(r"<[^>]+>|\s+", " ", StatusPage(lambda: (view(assessment, at),), clock, ChartHistory()).render("").body.decode())
    text = render_plain(Report("demo", 60.0, 12, 0, KnownConfig(), (assessment,)))
    holds = {
        "metric": series.get("kvwatch_sustainable_sequences"),
        "json": told["signals"]["sustainable_sequences"],
        "page": found(r"Safe concurrency +(\d[\d ]*) sequences", page),
        "check": capacity(assessment)["sustainable_sequences"],
        "check's text": found(r"it holds +(\d[\d ]*) sequence", text),
    }
    advised = {
        "metric": series.get("kvwatch_recommended_max_num_seqs"),
        "json": next((float(one["proposed"]) for one in told["advice"] if one["lever"] == "--max-num-seqs" and one["proposed"]), None),
        "page": found(r"--max-num-seqs +(?:\d+ +→ +)?(?:→ +)?(\d+)", page),
        "check's text": found(r"\d\. --max-num-seqs (?:\d+ )?→ (\d+)", text),
    }
    return holds, advised


def found(pattern, text):
    match = re.search(pattern, text)
    return None if match is None else float(match[1].replace(" ", ""))


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_surface_gives_the_same_number_at_every_moment(repository, name):
    shown, told = None, 0
    for entry, assessments in rows(repository / "tests" / "data" / "recordings" / f"{name}.jsonl.xz"):
        for one in assessments:
            if one.signals is None:
                continue
            number, advised = one.signals.sustainable_sequences, recommended_max_num_seqs(one.advice)
            if one.verdict.cause is Cause.PREEMPTING and advised is not None:
                assert advised == number
            for change in one.advice:
                for other in re.findall(r"(?:the cache holds|want to run,) (\d+) ?(?:\(|fit)", change.reason):
                    assert int(other) == number
            for alert in one.alerts if one.verdict.storm else ():
                for other in re.findall(r"proxy to (\d+)|--max-num-seqs (?:\d+ → )?(\d+)", alert.description):
                    assert int(other[0] or other[1]) == (advised or number)
            if (number, advised) != shown:
                holds, advises = said(replace(one, alerts=()), entry.t)  # an alert that holds keeps its text
                assert (set(holds.values()), set(advises.values())) == ({number}, {advised}), (holds, advises)
                shown, told = (number, advised), told + 1
    assert told > 0 or name == "stats_disabled"


def _served(body, _url):
    return body


def planned(entry):
    """What ``plan --url`` says of that page."""
    live = scrape_live("http://demo", partial(_served, entry.body), KnownConfig())
    return build_plan(live.pool, source="url", typical_tokens=live.typical_tokens).options[0].max_num_seqs


def test_a_plan_of_the_same_page_is_within_the_band_of_what_is_advised(repository):
    compared = 0
    for entry, (one, *_) in rows(repository / "tests" / "data" / "recordings" / "kv_storm.jsonl.xz"):
        advised = recommended_max_num_seqs(one.advice)
        if one.verdict.cause is Cause.PREEMPTING and advised is not None and entry.t - one.verdict.since > MIXED:
            assert not differ(advised, planned(entry)), (entry.t, advised, planned(entry))
            compared += 1
    assert compared > 3


LATELY_LONGER = {"healthy_steady"}
"""A plan speaks of all requests since the server started, a check of its window and of those that run: here long ones remain last."""


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name != "stats_disabled"])
def test_a_plan_and_a_check_that_end_at_the_same_page_are_within_the_band_where_requests_stay_alike(repository, name):
    *_, (entry, assessments) = rows(repository / "tests" / "data" / "recordings" / f"{name}.jsonl.xz")
    for one in assessments:
        checked = one.signals.sustainable_sequences
        assert checked is not None
        assert differ(checked, planned(entry)) == (name in LATELY_LONGER), (checked, planned(entry))


@given(
    pool=st.integers(1, 4_000_000),
    prompt=st.floats(1, 100_000),
    output=st.floats(1, 100_000),
    block=st.sampled_from([1, 16, 32, 64, 128, 784]),
)
def test_the_same_usual_request_in_the_same_pool_gets_the_same_number_from_a_plan_and_a_check(pool, prompt, output, block):
    checked = concurrency_limit(pool, SequenceSizes(prompt, output, block_size=block))
    option = build_plan(Pool(pool, None, block_size=block), source="url", typical_tokens=prompt + output).options[0]
    assert option.typical_sequences == checked.sequences
