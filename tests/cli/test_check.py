"""``kvwatch check``: recordings served as a live server, its exit codes, and what a person and a program read."""

from __future__ import annotations

import argparse
import io
import json
import lzma

import pytest
from rich.console import Console

from kvwatch.assess import Judge
from kvwatch.check.render import render, render_plain
from kvwatch.check.report import Report
from kvwatch.check.watching import Watch, watch, with_version
from kvwatch.classifier.rules import PRECEDENCE
from kvwatch.commands import cli
from kvwatch.commands.check import add_arguments
from kvwatch.commands.outside import Outside
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.errors import ScrapeError, UsageError
from kvwatch.model import Alert, Assessment, Cause, EngineId, FailureReason, Severity, State, Verdict

URL = "http://127.0.0.1:8000/metrics"


class Server:
    """A recording served from *start* on: its clock stands at the scrape that is asked for next."""

    def __init__(self, repository, name, start=0.0):
        with lzma.open(repository / "tests" / "data" / "recordings" / f"{name}.jsonl.xz", "rt") as lines:
            next(lines)
            rows = [json.loads(line) for line in lines]
        began = rows[0]["t"]
        self.rows = [(row["t"] - began, row) for row in rows if row["t"] - began >= start]
        self.asked = []
        self.next = 0

    def monotonic(self):
        return self.rows[min(self.next, len(self.rows) - 1)][0]

    def unix(self):
        return self.monotonic()

    def fetch(self, url):
        self.asked.append(url)
        if not url.endswith("/metrics"):
            return b'{"version": "0.32.0"}'
        row = self.rows[min(self.next, len(self.rows) - 1)][1]
        if "body" not in row:
            raise ScrapeError(FailureReason.CONNECT, "connection refused")
        return row["body"].encode()

    def wait(self, seconds):
        until = self.monotonic() + seconds
        while self.next < len(self.rows) - 1 and self.rows[self.next][0] < until:
            self.next += 1


class Silence(Server):
    """Nothing answers; time passes as it is waited for."""

    def __init__(self, failure):
        self.now, self.failure, self.asked = 0.0, failure, []

    def monotonic(self):
        return self.now

    def fetch(self, url):
        self.asked.append(url)
        raise self.failure

    def wait(self, seconds):
        self.now += seconds


def check(server, *arguments, url=URL, wait=None, out=None):
    parser = argparse.ArgumentParser(prog="kvwatch")
    add_arguments(parser)
    args = parser.parse_args([*([] if url is None else [url]), *map(str, arguments)])
    out = out or io.StringIO()
    code = args.run(args, Outside(server.fetch, server, wait or server.wait, out))
    return code, out.getvalue()


def checked(server, *arguments):
    code, text = check(server, *arguments, "--format", "json")
    return code, json.loads(text)


@pytest.mark.parametrize(
    ("name", "start", "code", "verdict"),
    [
        pytest.param("healthy_steady", 60, 0, ("healthy", {"ok", "idle"}), id="healthy"),
        pytest.param("kv_full_but_fine", 40, 0, ("healthy", {"ok", "kv_high"}), id="full-but-fine"),
        pytest.param("kv_storm", 70, 2, ("kv_bound", {"preempting"}), id="storm"),
        pytest.param("storm_mfu", 40, 2, ("kv_bound", {"preempting"}), id="storm-without-prefix-cache"),
        pytest.param("kv_admission", 60, 1, ("kv_bound", {"admission"}), id="admission"),
        pytest.param("seq_limit", 80, 1, ("compute_bound", {"sequence_slots"}), id="slots"),
        pytest.param("prefill_budget", 60, 1, ("compute_bound", {"step_budget", "compute"}), id="step-budget"),
        pytest.param("compute", 90, 1, ("compute_bound", {"compute", "sequence_slots"}), id="compute"),
        pytest.param("stats_disabled", 0, 3, ("unknown", {"stats_disabled"}), id="stats-disabled"),
    ],
)
def test_a_recording_served_live_is_judged_right(repository, name, start, code, verdict):
    state, causes = verdict
    found, report = checked(Server(repository, name, start), "--for", "30s")
    (engine,) = report["engines"]
    assert (found, engine["state"]) == (code, state)
    assert engine["cause"] in causes
    assert report["exit_code"] == code


@pytest.mark.parametrize(
    ("name", "start", "now", "allowed"),
    [
        # 160 blocks of 32 tokens, requests of about 480: no more than 10 fit when they are grown.
        pytest.param("kv_storm", 70, 64, range(7, 11), id="storm"),
        # 1000 blocks: about 66 fit.
        pytest.param("seq_limit", 80, 8, range(9, 67), id="slots"),
    ],
)
def test_the_advice_carries_a_number_the_pool_can_hold(repository, name, start, now, allowed):
    _, report = checked(Server(repository, name, start), "--for", "30s", "--max-num-seqs", now)
    first = report["engines"][0]["advice"][0]
    assert (first["lever"], first["current"]) == ("--max-num-seqs", str(now))
    assert int(first["proposed"]) in allowed


def test_a_healthy_engine_gets_no_advice(repository):
    _, report = checked(Server(repository, "healthy_steady", 60))
    assert report["engines"][0]["advice"] == []


def test_one_scrape_is_never_enough_to_claim_healthy(repository):
    code, report = checked(Server(repository, "healthy_steady", 60), "--for", "1ms")
    assert (code, report["scrapes"], report["engines"][0]["cause"]) == (3, 2, "warming_up")


def test_of_several_engines_the_worst_decides(repository):
    code, report = checked(Server(repository, "dp2_one_starved", 60), "--for", "30s")
    assert [engine["engine"] for engine in report["engines"]] == ["0", "1"]
    assert code == max(engine["exit_code"] for engine in report["engines"]) == 2


def assessed(state, cause, *alerts):
    return Assessment(Verdict(EngineId("m", "0"), state, cause, (), 0.0), None, alerts)


PAGE = Alert("PreemptionStorm", Severity.CRITICAL, 0.0, "s", "d")
WARNING = Alert("KVBound", Severity.WARNING, 0.0, "s", "d")


@pytest.mark.parametrize(
    ("assessments", "code"),
    [
        ((), 3),
        ((assessed(State.HEALTHY, Cause.OK),), 0),
        ((assessed(State.KV_BOUND, Cause.PREEMPTING, WARNING),), 1),
        ((assessed(State.KV_BOUND, Cause.PREEMPTING, PAGE),), 2),
        ((assessed(State.COMPUTE_BOUND, Cause.STALLED),), 2),
        ((assessed(State.HEALTHY, Cause.OK), assessed(State.UNKNOWN, Cause.STALE)), 3),
        ((assessed(State.UNKNOWN, Cause.STALE), assessed(State.KV_BOUND, Cause.ADMISSION)), 1),
        ((assessed(State.KV_BOUND, Cause.PREEMPTING, PAGE), assessed(State.HEALTHY, Cause.OK)), 2),
        # A page that has not ended yet, of an engine that cannot be seen any more, is no diagnosis.
        ((assessed(State.UNKNOWN, Cause.UNREACHABLE, PAGE),), 3),
    ],
)
def test_exit_codes_are_those_of_the_contract(assessments, code):
    assert Report(URL, 15.0, 16, 0, KnownConfig(), assessments).exit_code == code


def test_a_target_that_never_answers_is_given_up_after_three_tries():
    server = Silence(ScrapeError(FailureReason.CONNECT, "connection refused"))
    code, report = checked(server)
    assert (code, report["failures"], server.asked.count(URL)) == (3, 3, 3)
    assert report["engines"][0]["cause"] == "unreachable"
    assert "connection refused" in report["engines"][0]["evidence"][0]


def test_a_target_that_dies_meanwhile_is_unknown_at_the_end(repository):
    code, report = checked(Server(repository, "restart_under_storm", 30), "--for", "28s")
    assert (code, report["engines"][0]["cause"]) == (3, "unreachable")
    assert report["failures"] >= 1


def impatient(server, scrapes):
    """A wait that is interrupted after so many scrapes."""

    def wait(seconds):
        if server.asked.count(URL) >= scrapes:
            raise KeyboardInterrupt
        server.wait(seconds)

    return wait


def test_an_interrupt_ends_the_watch_with_what_is_known(repository):
    server = Server(repository, "kv_storm", 70)
    code, text = check(server, "--for", "60s", "--format", "json", wait=impatient(server, 21))
    report = json.loads(text)
    assert (report["scrapes"], report["engines"][0]["state"]) == (21, "kv_bound")
    assert code == report["exit_code"] == 2


def test_the_scrapes_are_an_interval_apart(repository):
    server = Silence(AssertionError())
    body = Server(repository, "healthy_steady", 60).rows[0][1]["body"].encode()
    server.fetch = lambda _url: body  # type: ignore[method-assign]
    how = Watch(URL, server.fetch, server, server.wait, 2.0, 10.0)
    reports = list(watch(how, Judge(Policy(), KnownConfig(), 2.0), KnownConfig()))
    assert [report.seconds for report in reports] == pytest.approx([0.0, 2.0, 4.0, 6.0, 8.0, 10.0])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_watching_draws_each_scrape_on_a_terminal_and_ends_well_on_an_interrupt(repository, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    server = Server(repository, "kv_storm", 70)
    code, text = check(server, "--watch", wait=impatient(server, 40), out=Terminal())
    assert code == 0
    assert 30 <= text.count("kv_bound (preempting)") <= 41  # one picture a scrape, and the last one that stays
    for shown in ("evidence", "advice", "throughput", "TTFT", "KV cache", "Ctrl-C ends"):
        assert shown in text


def test_watching_without_a_terminal_is_a_line_for_each_change(repository):
    server = Server(repository, "restart_under_storm", 30)
    code, text = check(server, "--watch", "--for", "80s")
    states = [line.split(": ")[1].split(" [")[0] for line in text.splitlines()]
    assert code == 0
    assert "unknown (unreachable)" in states
    assert "kv_bound (preempting)" in states
    assert len(states) < 20 < server.asked.count(URL)


def test_watching_waits_for_a_server_that_is_not_there_yet():
    server = Silence(ScrapeError(FailureReason.CONNECT, "connection refused"))
    code, text = check(server, "--watch", wait=impatient(server, 10))
    assert (code, server.asked.count(URL), len(text.splitlines())) == (0, 10, 1)


@pytest.mark.parametrize(
    "arguments",
    [["--for", "soon"], ["--nonsense"], ["ftp://host"], ["--format", "xml"], ["--watch", "--format=json"], ["a", "b"]],
    ids=" ".join,
)
def test_a_usage_error_is_one_line_and_never_a_verdict(capsys, arguments):
    assert cli.main(["check", *arguments]) == 3
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert printed.err.startswith("kvwatch: ")


@pytest.mark.parametrize("command", sorted({*cli.COMMANDS} - {"check"}))
def test_a_usage_error_of_another_command_is_one_line_and_exit_2(capsys, command):
    assert cli.main([command, "--nonsense"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_watching_is_for_people():
    with pytest.raises(UsageError, match="--watch is for people"):
        check(Silence(AssertionError()), "--watch", "--format", "json")


@pytest.mark.parametrize(("name", "start"), [("kv_storm", 70), ("healthy_steady", 60), ("seq_limit", 80), ("stalled", 60)])
def test_every_rule_is_listed_with_what_it_says_or_why_not(repository, name, start):
    _, report = checked(Server(repository, name, start), "--for", "30s", "--all")
    engine = report["engines"][0]
    rules = engine["rules"]
    assert len(rules) == len(PRECEDENCE)
    first = next(said for said in rules.values() if said.startswith("says"))
    assert first.startswith(f"says {engine['state']} / {engine['cause']}: ")
    assert all(said.startswith(("says ", "silent: looks for ", "outranked by the rule above, else says ")) for said in rules.values())
    _, text = check(Server(repository, name, start), "--for", "30s", "--all")
    assert all(f"{cause}: {said}" in text for cause, said in rules.items())


def test_no_rule_is_asked_where_there_are_no_numbers():
    code, text = check(Silence(ScrapeError(FailureReason.CONNECT, "connection refused")), "--all")
    assert (code, "none was asked" in text) == (3, True)


def test_the_version_is_asked_of_the_server(repository):
    server = Server(repository, "healthy_steady")
    _, report = checked(server, "--for", "5s")
    assert report["known"]["vllm_version"] == "0.32.0"
    assert server.asked[0] == "http://127.0.0.1:8000/version"


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (b'{"version": "0.11.1"}', "0.11.1"),
        (b'{"version": "dev"}', None),
        (b"[]", None),
        (b"<html>", None),
        (b'{"version": 3}', None),
        (None, None),
    ],
)
def test_a_server_that_names_no_version_has_none(answer, version):
    def fetch(url):
        if answer is None:
            raise ScrapeError(FailureReason.HTTP_STATUS, "404")
        return answer

    assert with_version(KnownConfig(), URL, fetch).vllm_version == version
    assert with_version(KnownConfig(vllm_version="0.6.3"), URL, fetch).vllm_version == "0.6.3"


def test_flags_go_before_the_log_and_the_log_before_the_environment(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("KVWATCH_VLLM__MAX_NUM_SEQS", "1")
    monkeypatch.setenv("KVWATCH_VLLM__MAX_NUM_BATCHED_TOKENS", "512")
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO vLLM API server version 0.10.2\nINFO non-default args: {'max_num_seqs': 48}\n"
        "INFO GPU KV cache size: 43,600 tokens\nINFO Maximum concurrency for 8,192 tokens per request: 5.32x\n"
    )
    _, report = checked(Server(repository, "healthy_steady"), "--for", "5s", "--log", log, "--max-model-len", 4096)
    assert report["known"] == {
        "max_num_seqs": 48,
        "max_num_batched_tokens": 512,
        "max_model_len": 4096,
        "kv_cache_tokens": 43600,
        "vllm_version": "0.10.2",
    }


def test_text_is_plain_when_piped_and_tells_everything(repository):
    code, text = check(Server(repository, "kv_storm", 70), "--for", "30s", "--max-num-seqs", 64)
    assert code == 2
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith(f"{URL}: watched for 30 s, ")
    assert "demo-8b engine 0: kv_bound (preempting)" in lines
    labels = [line[2:15].strip() for line in lines if line.startswith("  ") and line[2:15].strip()]
    assert [label for label in labels if label != "evidence"] == [
        "alert",
        "throughput",
        "preemptions",
        "TTFT",
        "ITL",
        "P99",
        "KV cache",
        "it holds",
        "KV demand",
        "advice",
    ]
    assert any("1. --max-num-seqs 64 → " in line for line in lines)


def test_a_terminal_reads_the_same_words(repository):
    server = Server(repository, "kv_storm", 70)
    judge = Judge(Policy(), KnownConfig(), 1.0)
    *_, report = watch(Watch(URL, server.fetch, server, server.wait, 1.0, 30.0), judge, KnownConfig())
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    shown_in = io.StringIO()
    console = Console(file=shown_in, width=80, force_terminal=True, color_system=None)
    console.print(render(report, 80))
    shown = shown_in.getvalue()
    assert shown.split() == render_plain(report).split()
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (None, URL),
        ("127.0.0.1:8000", URL),
        (" 127.0.0.1:8000\n", URL),
        ("http://127.0.0.1:8000", URL),
        ("http://127.0.0.1:8000/", URL),
        ("http://127.0.0.1:8000/v1", URL),
        ("127.0.0.1:8000/v1/", URL),
        (URL, URL),
        ("127.0.0.1:8000/metrics", URL),
        ("http://127.0.0.1:8000/engine/metrics", "http://127.0.0.1:8000/engine/metrics"),
        ("https://vllm", "https://vllm/metrics"),
        ("vllm.models.svc:8000", "http://vllm.models.svc:8000/metrics"),
        ("[::1]:8000", "http://[::1]:8000/metrics"),
        ("http://vllm:8000?model=a", "http://vllm:8000/metrics?model=a"),
    ],
)
def test_an_address_means_its_metrics(given, asked, capsys):
    server = Silence(ScrapeError(FailureReason.CONNECT, "refused"))
    check(server, url=given)
    assert asked in server.asked
    assert capsys.readouterr().err == (f"no URL given: asking {URL}\n" if given is None else "")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/metrics",
        "http://user:secret@host/metrics",
        "user:secret@host:8000",
        "dns+http://vllm:8000/metrics",
        "h:x",
        "h:0",
        "a b",
    ],
)
def test_an_url_that_is_none_is_refused_without_repeating_a_secret(url):
    with pytest.raises(UsageError) as refused:
        check(Silence(AssertionError()), url=url)
    assert "secret" not in str(refused.value)


def test_time_until_full_is_told_before_it_is_full(repository):
    _, calm = check(Server(repository, "kv_full_but_fine", 40), "--for", "30s")
    _, storm = check(Server(repository, "kv_storm", 70), "--for", "30s")
    assert "\n  full in" not in storm
    assert "\n  KV cache" in calm
