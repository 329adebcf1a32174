"""Every command in README and docs is run: against a simulated server, a Prometheus that answers from memory, and files of those names."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from fake_prometheus import fake_prometheus
from pages_for_people import REPOSITORY, command_lines, commands_said, pages_for_people, shell_lines
from peers import Peer, answer, sends

from kvwatch.clock import SystemClock
from kvwatch.commands import cli
from kvwatch.commands.cli import COMMANDS, _parser
from kvwatch.runs.run import Conditions, FiveLines, Percentiles, Run
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop, Uniform
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation

PATIENCE = 60.0
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
""",
]
"""Runs a module for which SIGINT is not ignored, as it is in a shell's background job."""
NIGHT = 1_769_821_200.0
"""2026-01-31T02:00:00+01:00, which the docs look back at."""
VERDICTS = {"check": {0, 1, 2, 3}, "compare": {0, 1}}
"""Exit codes of a command that did its work; 0 for all others. 3 of `check` is a verdict only beside an engine: it has not seen enough."""

RUN_ELSEWHERE = {
    "make": "CI runs its targets",
    "docker": "needs a daemon; tests/deploy/test_compose.py and test_image_recipe.py hold what it reads, tests/e2e/image_test.sh builds it",
    "helm": "needs a cluster; tests/deploy/test_helm_chart.py renders the chart with the values of that line",
    "pip": "tests/deploy/test_wheel.py installs what it installs",
    "python3": "same",
    "/opt/kvwatch/bin/pip": "same",
    "install": "writes to /etc; tests/deploy/test_host.py holds the files",
    "systemctl": "needs systemd; same",
    "journalctl": "same",
    "curl": "asks what systemd has started; the path is a route of tests/exporter/test_http_routes.py",
    "vllm": "needs vLLM and a model",
}
"""Programs whose lines are not run here, and what holds them instead."""

MORE = (
    "run --config.file kvwatch.yml --config.check",
    "run vllm:8000 --shard 0/2 --web.config.file web.yml --web.enable-lifecycle --web.listen-address 127.0.0.1:0",
    "alert-test --alertmanager.urls http://alertmanager:9093 --severity warning",
    "demo --scenario idle --speed 60 --forever --web.listen-address 127.0.0.1:0",
    "record vllm:8000 --interval 1s --for 2s -o out.jsonl",
    "replay night.jsonl.xz --interval 15s",
    "replay night.jsonl.xz --window.slow 4m --objectives.time-to-first-token 2s --vllm.max-num-seqs 64",
    "replay --prometheus http://prometheus:9090 --start 1h --prometheus.bearer-token-file secret --prometheus.header 'X-Scope-OrgID: a'",
    "replay --prometheus http://prometheus:9090 --start 1h --prometheus.username sre --prometheus.password-file secret",
    "replay --prometheus https://prometheus:9090 --start 1h --prometheus.ca-file ca.pem",
    "plan --url vllm:8000",
    "plan --config config.json --gpu-memory 80 --gpu-memory-utilization 0.9 --max-model-len 8192 --kv-cache-dtype fp8 --vllm-version 0.32",
    "plan --config config.json --kv-cache-memory 16 --max-num-batched-tokens 4096 --format json",
    "plan --log vllm.log",
    *(f"{name} --help" for name in COMMANDS),
)
"""Lines for flags that the docs name outside a line to type."""

LINES = sorted(
    {
        line
        for text in pages_for_people().values()
        for line in (*command_lines(text), *(said for said in commands_said(text) if said.split()[0] in COMMANDS))
    }
    | set(MORE)
)
SIMULATORS = sorted({line for text in pages_for_people().values() for line in shell_lines(text) if line.startswith("python ")})

SERVED = (
    "INFO 01-31 02:00:{:02d} [loggers.py:1] Engine 000: Avg prompt throughput: 300.0 tokens/s, Avg generation throughput: 425.5 tokens/s, "
    "Running: 6 reqs, Waiting: 0 reqs, GPU KV cache usage: 40.0%, Prefix cache hit rate: 0.0%\n"
)


def a_run(name, rate, ttft, **conditions):
    seconds = Percentiles(ttft, ttft, ttft)
    return Run(
        name,
        120.0,
        FiveLines(rate, 2 * rate, 0.0, seconds, Percentiles(0.02, 0.02, 0.02), seconds),
        Conditions(**{"requests": 400.0, "concurrency": 32.0, "mean_prompt_tokens": 300.0, "mean_output_tokens": 200.0} | conditions),
    )


def fill(folder):
    """The files the docs speak of."""
    compared = {name for line in LINES if line.startswith("compare ") for name in re.findall(r"(\S+)\.json", line)}
    runs = {
        **dict.fromkeys(compared | {"base", "candidate"}, a_run("", 200.0, 1.0)),
        **{f"seqs{slots}": a_run("", 100.0 * slots**0.5, 1.0, max_num_seqs=slots) for slots in (4, 8, 16, 32)},
        **{f"c{clients}": a_run("", 100.0 * clients**0.5, 1.0, concurrency=float(clients)) for clients in (8, 16, 32)},
        **{f"in{tokens}": a_run("", 200.0, tokens / 500, mean_prompt_tokens=float(tokens)) for tokens in (512, 2048, 8192)},
    }
    for name, run in runs.items():
        (folder / f"{name}.json").write_text(json.dumps(run.as_json()))
    data = REPOSITORY / "tests" / "data"
    shutil.copy(data / "recordings" / "kv_storm.jsonl.xz", folder / "night.jsonl.xz")
    started = (data / "oracle" / "logs" / "real_032_llama_gqa.log").read_text()
    (folder / "vllm.log").write_text(started + "".join(SERVED.format(second) for second in range(0, 60, 10)))
    shutil.copy(REPOSITORY / "deploy" / "host" / "kvwatch.yaml", folder / "kvwatch.yml")
    with gzip.open(data / "oracle" / "published.json.gz") as published:
        (folder / "config.json").write_text(json.dumps(json.load(published)["llama31_8b"]["config"]))
    (folder / "secret").write_text("not a real one\n")
    (folder / "web.yml").write_text("basic_auth_users: {}\n")
    (folder / "trace.csv").write_text("timestamp,prompt_tokens,output_tokens\n0,300,200\n1,300,200\n")


def scraped(prometheus):
    """Ten minutes of a pod that serves, in each time the docs ask for."""
    now = SystemClock().unix()
    simulation = Simulation(ServerConfig(), ClosedLoop(8, Uniform(200, 400), Uniform(50, 150)))
    for t in range(0, 600, 15):
        simulation.advance(float(t))
        text = "\n".join(line for line in expose(simulation).splitlines() if line.startswith("vllm:"))
        for begin, pod in ((NIGHT, "llama-0"), (now - 24.8 * 3600, "vllm-0"), (now - 1800, "vllm-0")):
            prometheus.scraped(begin + t, "vllm-0:8000", text, namespace="models", pod=pod)


@pytest.fixture(scope="module")
def names(tls):
    """What stands in the docs, and what it is here."""
    simulation = Simulation(ServerConfig(), ClosedLoop(8, Uniform(200, 400), Uniform(50, 150)))
    with (
        SimulatorServer(simulation) as vllm,
        fake_prometheus() as prometheus,
        fake_prometheus(tls) as guarded,
        closing(Peer(sends(answer()))) as alertmanager,
    ):
        scraped(prometheus)
        scraped(guarded)
        server = vllm.url.removeprefix("http://").removesuffix("/metrics")
        yield {
            "http://prometheus:9090": prometheus.url,
            "https://prometheus:9090": guarded.url,
            "http://alertmanager:9093": f"http://127.0.0.1:{alertmanager.port}",
            "vllm:8000": server,
            "[URL ...]": server,
            "[URL]": server,
            "URL": server,
            "FILE...": "night.jsonl.xz",
            "FILE": "out.jsonl",
            "BASE CANDIDATE": "base.json candidate.json",
        }


@pytest.fixture
def folder(tmp_path, monkeypatch, certificate):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    shutil.copy(certificate, tmp_path / "ca.pem")
    return tmp_path


def as_here(line, names):
    """The arguments of a line as a test can run it: names that are here, seconds for minutes, and what a bare command lacks."""
    for theirs, ours in names.items():
        line = re.sub(rf"(?<![\w.-]){re.escape(theirs)}(?![\w-])", ours, line)
    words = shlex.split(re.sub(r"--for \d+[sm]", "--for 2s", line))
    command, server = words[0], names["vllm:8000"]
    if "--help" in words or "--config.check" in words:
        return words
    asks = any(":" in word for word in words)
    if command in ("check", "record", "snapshot") and not {"--for", "--watch", "--prometheus"} & set(words):
        words.append("--for=2s")
    if command in ("run", "demo") and "--web.listen-address" not in words:
        words.append("--web.listen-address=127.0.0.1:0")
    if command in ("check", "run", "record", "snapshot") and not asks:
        words.append(server)
    if command in ("record", "snapshot") and "-o" not in words:
        words += ["-o", "out.json" if command == "snapshot" else "out.jsonl"]
    if command == "replay" and not asks and not any("night" in word or "vllm.log" in word for word in words):
        words.append("night.jsonl.xz")
    bare = {
        "demo": ["--speed=60", "--scenario=idle"],
        "alert-test": [f"--alertmanager.urls={names['http://alertmanager:9093']}"],
        "compare": ["base.json", "candidate.json"],
        "plan": ["--url", server],
    }
    return words + (bare.get(command, []) if all(word.startswith("--web.") for word in words[1:]) else [])


def ends_by_itself(words):
    return not ("--watch" in words or "--forever" in words or (words[0] == "run" and not {"--config.check", "--help"} & set(words)))


def here(words):
    """Run what waits for nothing in this process; returns its exit code."""
    try:
        return cli.main(words)
    except SystemExit as ended:
        return ended.code or 0


def until_it_speaks(arguments):
    """Start a module with its arguments, interrupt it after its first line; returns its exit code and what it said."""
    process = subprocess.Popen([*INTERRUPTIBLE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    guard = threading.Timer(PATIENCE, process.kill)
    guard.start()
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=PATIENCE)[0]
    finally:
        guard.cancel()
        process.kill()
    return process.returncode, first + rest


@pytest.mark.parametrize("line", LINES)
@pytest.mark.usefixtures("folder")
def test_a_documented_command_runs(line, names, capsys):
    words = as_here(line, names)
    expected = {0} if "--help" in words or not ends_by_itself(words) else VERDICTS.get(words[0], {0})
    if not ends_by_itself(words):
        code, said = until_it_speaks(["kvwatch", *words])
    elif words[0] in ("replay", "compare", "plan") or "--help" in words:
        code = here(words)
        said = "".join(capsys.readouterr())
    else:
        done = subprocess.run([sys.executable, "-m", "kvwatch", *words], capture_output=True, text=True, check=False, timeout=PATIENCE)
        code, said = done.returncode, done.stdout + done.stderr
    assert code in expected, said
    assert code != 3 or "demo-8b" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("line", SIMULATORS)
@pytest.mark.usefixtures("folder")
def test_a_documented_simulator_serves(line):
    words = shlex.split(re.sub(r"--port \d+", "--port 0", line))
    code, said = until_it_speaks(words[2:])
    assert re.match(r"http://127\.0\.0\.1:\d+/metrics\n", said), said
    assert code == 0


def test_every_line_to_type_is_run_here_or_said_to_be_elsewhere():
    programs = {line.split()[0] for text in pages_for_people().values() for line in shell_lines(text)}
    assert programs - {"kvwatch", "python"} == set(RUN_ELSEWHERE)


def test_every_flag_of_kvwatch_that_the_docs_name_is_run():
    flags = {
        flag
        for name in COMMANDS
        for action in _parser(name)._subparsers._group_actions[0].choices[name]._actions
        for flag in action.option_strings
        if flag.startswith("--")
    }
    sections = {flag for flag in flags if any(other.startswith(f"{flag}.") for other in flags)}
    run = {word.split("=")[0] for line in LINES for word in shlex.split(line)}
    named = {flag for text in pages_for_people().values() for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", text)}
    groups = {group for text in pages_for_people().values() for group in re.findall(r"`(--[a-z]+\.)\*`", text)}
    assert (named & flags) - sections - run == set()
    assert [group for group in groups if not any(flag.startswith(group) for flag in run)] == []
