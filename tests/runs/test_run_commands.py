"""``kvwatch snapshot`` and ``kvwatch compare`` as they are typed."""

from __future__ import annotations

import json
import re

import pytest
from some_runs import a_run

from kvwatch.commands import cli
from kvwatch.commands.snapshot import live
from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason

BODY = b"""\
vllm:num_requests_running{engine="0",model_name="demo-8b"} 4
vllm:num_requests_waiting{engine="0",model_name="demo-8b"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="demo-8b"} 0.5
vllm:generation_tokens_total{engine="0",model_name="demo-8b"} %d
"""


@pytest.fixture
def kept(tmp_path):
    def keep(run):
        path = tmp_path / f"{run.source}.json"
        path.write_text(json.dumps(run.as_json()))
        return str(path)

    return keep


def test_a_recording_becomes_a_snapshot_that_can_be_compared(repository, tmp_path, capsys):
    recording = repository / "tests" / "data" / "recordings" / "kv_storm.jsonl.xz"
    target = tmp_path / "storm.json"
    assert cli.main(["snapshot", str(recording), "-o", str(target), "--max-num-seqs", "64"]) == 0
    assert re.search(r"preemption ratio +3\d %", capsys.readouterr().out)
    document = json.loads(target.read_text())
    assert document["kvwatch_snapshot"] == 1
    assert document["conditions"]["max_num_seqs"] == 64
    assert document["conditions"]["kv_capacity_tokens"] == 5120
    assert [path.name for path in tmp_path.iterdir()] == ["storm.json"]
    assert cli.main(["compare", str(target), str(target)]) == 0
    assert "no regression" in capsys.readouterr().out


def test_a_regression_is_exit_code_1_and_other_loads_are_3(kept, capsys):
    base, worse, other = kept(a_run("base")), kept(a_run("worse", ttft=2.0)), kept(a_run("other", mean_prompt_tokens=900.0))
    assert cli.main(["compare", base, worse]) == 1
    assert "regression" in capsys.readouterr().out
    assert cli.main(["compare", base, other]) == 3
    assert "not compared: the loads differ" in capsys.readouterr().out
    assert cli.main(["compare", base, worse, "--tolerance", "ttft=150%"]) == 0


def test_the_comparison_as_json_and_as_markdown(kept, capsys):
    base, worse = kept(a_run("base")), kept(a_run("worse", rate=50.0))
    cli.main(["compare", base, worse, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["regressed"] is True
    assert document["lines"]["throughput"] == {"base": 100.0, "candidate": 50.0, "change": -0.5, "tolerance": 0.05, "outcome": "worse"}
    cli.main(["compare", base, worse, "--format", "md"])
    assert "| generated tokens/s | 100 | 50 | -50.0 % | 5 % | worse |" in capsys.readouterr().out


def test_three_runs_are_a_ladder(kept, tmp_path, capsys):
    files = [kept(a_run(f"seqs{seqs}", rate=rate, max_num_seqs=seqs)) for seqs, rate in ((4, 50.0), (8, 100.0), (64, 60.0))]
    assert cli.main(["compare", *files, "--svg", str(tmp_path / "ladder.svg")]) == 0
    assert "the knee is at --max-num-seqs 8" in capsys.readouterr().out
    assert (tmp_path / "ladder.svg").read_text().startswith("<svg ")
    cli.main(["compare", *files, "--format", "json"])
    assert json.loads(capsys.readouterr().out)["knee"] == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["snapshot"], "needs either a URL or recording"),
        (["snapshot", "nothing.jsonl"], "nothing.jsonl: No such file"),
        (["snapshot", "http://127.0.0.1:1/metrics"], "connect"),
        (["snapshot", "ftp://127.0.0.1"], "URL"),
        (["snapshot", "--prometheus", "http://127.0.0.1:1", "--start", "1h", "--end", "2h"], "--start must be before --end"),
        (["snapshot", "--prometheus", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["compare", "a.json"], "a.json: No such file"),
        (["compare", "BASE"], "at least two runs"),
        (["compare", "BASE", "BASE", "--tolerance", "speed=1%"], "there is no line 'speed'"),
        (["compare", "BASE", "BASE", "--tolerance", "ttft=lots"], "write ttft=10%"),
        (["compare", "BASE", "BASE", "--tolerance", "ttft=-5%"], "write ttft=10%"),
        (["compare", "BASE", "BASE", "BASE"], "differ in neither"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(kept, capsys, arguments, why):
    base = kept(a_run("base"))
    assert cli.main([base if argument == "BASE" else argument for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


class Server:
    """A clock and a server whose tokens grow by 10 a second; *down* are the times at which it does not answer.

    The clock moves by *passes* seconds whenever it is read, as real ones do.
    """

    def __init__(self, down=(), passes=0.0):
        self.now = 0.0
        self.down = down
        self.passes = passes

    def monotonic(self):
        self.now += self.passes
        return self.now

    def unix(self):
        return 1.75e9 + self.now

    def wait(self, seconds):
        self.now += seconds

    def fetch(self, _url):
        if any(start <= self.now < end for start, end in self.down):
            raise ScrapeError(FailureReason.TIMEOUT, "no answer")
        return BODY % (10 * self.now)


def test_a_live_run_is_scraped_from_its_first_to_its_last_second():
    server = Server()
    scrapes = list(live("http://x/metrics", server.fetch, server, interval=5.0, seconds=12.0, wait=server.wait))
    assert [scrape.at for scrape in scrapes] == [0.0, 5.0, 10.0, 12.0]


def test_a_scrape_that_is_lost_does_not_end_a_run():
    server = Server(down=[(4.0, 6.0)])
    assert [s.at for s in live("u", server.fetch, server, interval=5.0, seconds=10.0, wait=server.wait)] == [0.0, 10.0]


@pytest.mark.parametrize(("down_from", "given_up_at"), [(0.0, 0.0), (4.0, 25.0)])
def test_a_server_that_is_gone_ends_it(down_from, given_up_at):
    server = Server(down=[(down_from, 1000.0)], passes=0.001)
    with pytest.raises(ScrapeError, match="no answer"):
        list(live("u", server.fetch, server, interval=5.0, seconds=100.0, wait=server.wait))
    assert server.now == pytest.approx(given_up_at, abs=0.1)
