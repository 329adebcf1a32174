"""``kvwatch replay``: the contract of its lines, its table, and how it takes what it is given."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
import tracemalloc

import pytest
from recordings_made import body, command, kvwatch, storm_body, write

from kvwatch.commands import cli

KEYS = ["t", "target", "model_name", "engine", "state", "cause", "preemption_ratio", "kv_usage", "running", "waiting", "alerts"]


@pytest.fixture
def replay(tmp_path, capsys):
    """The lines of ``replay --format jsonl`` over these scrapes."""

    def lines(*scrapes, flags=()):
        path = write(tmp_path / "replayed.jsonl", *scrapes)
        assert cli.main(["replay", "--format=jsonl", *flags, str(path)]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return [json.loads(line) for line in printed.out.splitlines()]

    return lines


def busy(first, last, step=5):
    return [(t, body(t)) for t in range(first, last, step)]


def test_a_line_has_exactly_the_keys_of_the_contract(replay):
    for line in replay(*busy(1000, 1060), (1060, None, "timeout: slow")):
        assert list(line) == KEYS
        assert list(line["preemption_ratio"]) == ["fast", "slow"]


def test_a_healthy_engine(replay):
    last = replay(*busy(1000, 1200))[-1]
    assert last == {
        "t": 1195,
        "target": "http://demo:8000/metrics",
        "model_name": "demo-8b",
        "engine": "0",
        "state": "healthy",
        "cause": "ok",
        "preemption_ratio": {"fast": 0.0, "slow": 0.0},
        "kv_usage": 0.4,
        "running": 8.0,
        "waiting": 0.0,
        "alerts": [],
    }


def test_a_storm_pages_with_its_ratio(replay):
    """Three preemptions and one finish a second: three leaving requests of four are preempted."""
    lines = replay(*busy(1000, 1100), *((t, storm_body(t, 1100)) for t in range(1100, 1300, 5)))
    last = lines[-1]
    assert (last["state"], last["cause"]) == ("kv_bound", "preempting")
    assert last["preemption_ratio"] == {"fast": pytest.approx(0.75), "slow": pytest.approx(0.75)}
    assert "PreemptionStorm" in last["alerts"]
    assert "PreemptionStorm" not in lines[19]["alerts"]
    paged = next(line["t"] for line in lines if "PreemptionStorm" in line["alerts"])
    assert 1100 < paged <= 1190


def test_one_line_per_scrape_and_engine_in_order(replay):
    two = [(t, body(t, engine="1") + body(t, engine="0")) for t in (1000, 1005)]
    assert [(line["t"], line["engine"]) for line in replay(*two)] == [(1000, "0"), (1000, "1"), (1005, "0"), (1005, "1")]


def test_a_failed_scrape_while_no_engine_is_known_is_one_line_without_engine(replay):
    lines = replay((1000, None, "connect: Connection refused"), (1005, body(1005)))
    assert lines[0] == {
        "t": 1000,
        "target": "http://demo:8000/metrics",
        "model_name": None,
        "engine": None,
        "state": "unknown",
        "cause": "unreachable",
        "preemption_ratio": {"fast": None, "slow": None},
        "kv_usage": None,
        "running": None,
        "waiting": None,
        "alerts": [],
    }
    assert lines[1]["engine"] == "0"


def test_a_failed_scrape_is_one_line_for_each_known_engine(replay):
    two = [(t, body(t) + body(t, engine="1")) for t in (1000, 1005)]
    failed = replay(*two, (1010, None, "timeout: no whole answer within 4 s"))[-2:]
    assert [(line["t"], line["engine"], line["state"], line["cause"]) for line in failed] == [
        (1010, "0", "unknown", "unreachable"),
        (1010, "1", "unknown", "unreachable"),
    ]
    assert [line["kv_usage"] for line in failed] == [None, None]


@pytest.mark.parametrize(
    ("scrape", "cause"),
    [
        pytest.param((1000, None, "dns"), "unreachable", id="reason-alone"),
        pytest.param((1000, None, "stats_disabled: no families"), "stats_disabled", id="reason-and-detail"),
        pytest.param((1000, None, "it was raining"), "unreachable", id="reason-of-another-recorder"),
        pytest.param((1000, None, ""), "unreachable", id="no-reason"),
        pytest.param((1000, ""), "no_vllm_metrics", id="body-empty"),
        pytest.param((1000, "<html></html>"), "no_vllm_metrics", id="body-html"),
        pytest.param((1000, "node_load1 1\n"), "no_vllm_metrics", id="body-of-another"),
    ],
)
def test_why_a_scrape_failed_is_the_cause(replay, scrape, cause):
    (line,) = replay(scrape)
    assert (line["state"], line["cause"], line["engine"]) == ("unknown", cause, None)


def test_an_interval_replays_what_a_slower_daemon_would_have_seen(replay):
    every_second = [(1000 + n / 1, body(1000 + n)) for n in range(31)]
    assert [line["t"] for line in replay(*every_second, flags=("--interval=5s",))] == [1000, 1005, 1010, 1015, 1020, 1025, 1030]
    assert len(replay(*every_second)) == 31


def test_known_flags_of_the_server_are_used(replay):
    """Eight running and a queue, the cache half empty: with max_num_seqs 8 known, the slots are the limit at once."""
    queued = [(t, body(t, running=8.0, waiting=6.0)) for t in range(1000, 1100, 5)]
    assert replay(*queued, flags=("--max-num-seqs=8",))[-1]["cause"] == "sequence_slots"


def test_several_files_are_replayed_one_after_another(tmp_path, capsys):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", (1000, body(1000)), target=name)
    assert cli.main(["replay", "--format=jsonl", str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]) == 0
    assert [json.loads(line)["target"] for line in capsys.readouterr().out.splitlines()] == ["b", "a"]


def test_a_recording_without_scrapes_says_nothing(replay):
    assert replay() == []


def test_a_broken_line_is_told_and_the_rest_replayed(tmp_path, capsys):
    path = write(tmp_path / "broken.jsonl", (1000, body(1000)))
    with path.open("a") as file:
        file.write("{oops\n" + json.dumps({"t": 1005, "body": body(1005)}) + "\n")
    assert cli.main(["replay", "--format=jsonl", str(path)]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["t"] for line in printed.out.splitlines()] == [1000, 1005]
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith(f"kvwatch: {path}:3: not JSON")


def test_the_table_has_a_line_per_stretch(tmp_path, capsys):
    path = write(
        tmp_path / "storm.jsonl", *busy(1000, 1100), *((t, storm_body(t, 1100)) for t in range(1100, 1200, 5)), target="[red] demo"
    )
    assert cli.main(["replay", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "[red] demo  1970-01-01, times in UTC"
    assert lines[1].split() == ["from", "to", "engine", "state", "ratio", "evidence,", "alerts"]
    starts = [line.split() for line in lines[2:] if line[:4].strip()]
    assert [(words[0], words[3], words[4]) for words in starts[:2]] == [
        ("00:16:40", "unknown", "warming_up"),
        ("00:16:50", "healthy", "ok"),
    ]
    assert starts[-1][3:5] == ["kv_bound", "preempting"]
    assert starts[-1][1] == "00:19:55"
    assert "PreemptionStorm" in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        pytest.param(["nowhere.jsonl"], "nowhere.jsonl: No such file or directory", id="missing"),
        pytest.param(["."], ".: Is a directory", id="directory"),
        pytest.param([], "replay needs either recordings or --prometheus", id="nothing"),
        pytest.param(["x.jsonl", "--prometheus=http://x"], "replay needs either recordings or --prometheus", id="both"),
        pytest.param(["x.jsonl", "--start=1h"], "--start belongs to --prometheus", id="start-of-a-file"),
        pytest.param(["x.jsonl", "--start=1h", "--end=0s"], "--start and --end belong to --prometheus", id="range-of-a-file"),
        pytest.param(["x.jsonl", "--prometheus.header=A: b"], "--prometheus.header belongs to --prometheus", id="header-for-a-file"),
        pytest.param(
            ["x.jsonl", "--prometheus.username=a", "--prometheus.password-file=b"],
            "--prometheus.username and --prometheus.password-file belong to --prometheus",
            id="login-for-a-file",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(tmp_path, monkeypatch, capsys, arguments, fault):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["replay", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"kvwatch: {fault}\n")


@pytest.mark.parametrize("flag", ["--interval=0s", "--interval=soon", "--max-num-seqs=0", "--max-num-seqs=many", "--format=xml"])
def test_a_flag_that_makes_no_sense_is_exit_2(capsys, flag):
    assert cli.main(["replay", "x.jsonl", flag]) == 2
    assert flag.split("=")[0] in capsys.readouterr().err


def long_recording(path, scrapes):
    with path.open("w") as file:
        file.write('{"kvwatch_recording": 1, "target": "demo"}\n')
        for n in range(scrapes):
            file.write(json.dumps({"t": 1000 + 5 * n, "body": body(1000 + 5 * n) + "# " + "x" * 20_000}) + "\n")
    return path


@pytest.mark.parametrize("form", ["jsonl", "table"])
def test_a_long_recording_is_not_held_in_memory(tmp_path, capsys, form):
    """Peak over 40 MB of scrapes is what it is over 4 MB: a few MB for the scrapes looked ahead."""
    peaks = []
    for scrapes in (200, 2000):
        path = long_recording(tmp_path / f"{scrapes}.jsonl", scrapes)
        tracemalloc.start()
        assert cli.main(["replay", f"--format={form}", str(path)]) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        written = len(capsys.readouterr().out)
    # What capsys itself keeps is not the replay's.
    assert peaks[1] - written * 4 < peaks[0] + 2_000_000


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    path = long_recording(tmp_path / "long.jsonl", 1500)
    with subprocess.Popen(command("replay", "--format=jsonl", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["t"] == 1000
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (141, -13)


def drained(terminal, into):
    """Read a terminal until the other end is closed: a program that writes to a full one waits."""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            return
        if not piece:
            return
        into.append(piece)


def test_a_long_replay_shows_its_progress_on_a_terminal_and_leaves_the_lines_alone(tmp_path):
    path = long_recording(tmp_path / "long.jsonl", 1500)
    ours, theirs = pty.openpty()
    shown = []
    reading = threading.Thread(target=drained, args=(ours, shown), daemon=True)
    with subprocess.Popen(
        command("replay", "--format=jsonl", path), stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        reading.start()
        lines = process.stdout.read().splitlines()
    reading.join(timeout=10)
    os.close(ours)
    assert process.returncode == 0
    assert len(lines) == 1500
    assert all(json.loads(line)["target"] == "demo" for line in lines)
    assert b"long.jsonl" in b"".join(shown)
    assert b"%" in b"".join(shown)


def test_without_a_terminal_there_is_no_progress(tmp_path):
    done = kvwatch("replay", "--format=jsonl", long_recording(tmp_path / "long.jsonl", 300))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_packed_recording_cut_short_is_replayed_up_to_there(tmp_path, repository):
    whole = (repository / "tests" / "data" / "recordings" / "healthy_steady.jsonl.xz").read_bytes()
    path = tmp_path / "cut.jsonl.xz"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    done = kvwatch("replay", "--format=jsonl", path)
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) > 10
    assert done.stderr.startswith(f"kvwatch: {path}: cut short or damaged: ")
    assert len(done.stderr.splitlines()) == 1
