"""How many requests may run at once has one answer at one moment, whoever is asked: advice, alert, metric, JSON, page, check, plan."""

from __future__ import annotations

import argparse
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import decimated
from prometheus_client import CollectorRegistry

from kvwatch.assess import judge_for
from kvwatch.capacity.concurrency import SequenceSizes, concurrency_limit
from kvwatch.check.render import render_plain
from kvwatch.check.report import Report, capacity
from kvwatch.commands import check, plan
from kvwatch.commands.outside import Outside
from kvwatch.config.policy import KnownConfig
from kvwatch.config.settings import Settings
from kvwatch.errors import ScrapeError
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.page import StatusPage
from kvwatch.exporter.web.status import status_document
from kvwatch.incident.recording import Reader
from kvwatch.incident.replay import rows_of
from kvwatch.model import Cause, FailureReason, TargetView, recommended_max_num_seqs
from kvwatch.plan.options import Pool
from kvwatch.plan.plan import build_plan

POLL = 5.0
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


class Server:
    """A recorded server from *at* seconds on: it answers with the page of the moment, and time passes by waiting."""

    def __init__(self, path, at):
        with Reader(path, pytest.fail) as entries:
            self.pages = [(entry.t, entry.body) for entry in entries if entry.body is not None]
        self.now = self.pages[0][0] + at

    def fetch(self, url):
        if url.endswith("/version"):
            raise ScrapeError(FailureReason.HTTP_STATUS, "404")
        return next(body for at, body in reversed(self.pages) if at <= self.now + 1e-6)

    def monotonic(self):
        return self.now

    unix = monotonic

    def wait(self, seconds):
        self.now += seconds


def asked(command, arguments, path, at):
    """What *command* prints with ``--format json`` of a recorded server that it watches from *at* on."""
    parser = argparse.ArgumentParser(prog="kvwatch")
    command.add_arguments(parser)
    args = parser.parse_args([*arguments, "--format", "json"])
    server, out = Server(path, at), io.StringIO()
    args.run(args, Outside(server.fetch, server, server.wait, out))
    return json.loads(out.getvalue())


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name != "stats_disabled"])
@pytest.mark.parametrize("at", [20.0, 70.0])
def test_a_plan_and_a_check_of_a_server_that_works_give_the_same_number(repository, name, at):
    path = repository / "tests" / "data" / "recordings" / f"{name}.jsonl.xz"
    checked = asked(check, ["http://demo:8000"], path, at)["engines"]
    planned = asked(plan, ["--url", "http://demo:8000"], path, at)
    holds = {engine["capacity"].get("sustainable_sequences") for engine in checked}
    if planned["typical_tokens"] is not None and any("as check counts it" in note for note in planned["notes"]):
        assert planned["options"][0]["typical_sequences"] in holds
    else:
        assert not any(engine["five_lines"].get("generation_tokens_per_second") for engine in checked)


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
