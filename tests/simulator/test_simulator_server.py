from __future__ import annotations

import io
import socket
from dataclasses import replace
from itertools import pairwise

import pytest
import requests

from kvwatch.errors import UsageError
from kvwatch.simulator.__main__ import build_parser, load_from, main, server_config
from kvwatch.simulator.config import CPU_25M, GPU_8B, ServerConfig
from kvwatch.simulator.faults import Fault, HttpFault, ScheduledFault
from kvwatch.simulator.load import ClosedLoop, Fixed, OpenLoop
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation

STARVED = ServerConfig(num_gpu_blocks=160, block_size=32, max_model_len=4096)


class ManualClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return 1.75e9 + self.now


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def server(clock):
    simulation = Simulation(STARVED, ClosedLoop(32, Fixed(300), Fixed(200)), profile=CPU_25M, seed=1, start_unix=1.75e9)
    with SimulatorServer(simulation, speed=10.0, slow_seconds=0.05, clock=clock) as running:
        yield running


def get(url: str, timeout: float = 5.0) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=timeout)


def number(text: str, series: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))


def test_time_passes_as_fast_as_asked(server, clock):
    clock.now += 6.0
    server.catch_up()
    assert server.simulation.now == pytest.approx(60.0)
    answer = get(server.url)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert number(answer.text, "vllm:num_preemptions_total") > 10


def test_health_and_version_answer_and_other_paths_do_not(server):
    base = server.url.removesuffix("/metrics")
    assert get(f"{base}/health").status_code == 200
    assert get(f"{base}/version").json() == {"version": "0.32.0"}
    assert get(f"{base}/v1/models").status_code == 404


def test_restart_refuses_connections_and_comes_back_on_the_same_port(server, clock):
    clock.now += 3.0
    server.catch_up()
    before = get(server.url).text
    server.restart(replace(STARVED, max_num_seqs=8), downtime=20.0)
    with pytest.raises(requests.ConnectionError):
        get(server.url)
    url = server.url
    clock.now += 2.5
    server.catch_up()
    after = get(url).text
    assert number(after, "process_start_time_seconds") > number(before, "process_start_time_seconds")
    assert number(after, "vllm:generation_tokens_total") < number(before, "vllm:generation_tokens_total")


def test_hanging_endpoint_times_out_while_health_answers(server):
    server.fault.set(HttpFault.HANG)
    with pytest.raises(requests.ReadTimeout):
        get(server.url, timeout=0.2)
    assert get(server.url.removesuffix("metrics") + "health").status_code == 200
    server.fault.set(None)
    assert get(server.url).status_code == 200


def test_failing_endpoint_says_500(server):
    server.fault.set(HttpFault.ERROR)
    assert get(server.url).status_code == 500


def test_web_page_comes_with_status_200(server):
    server.fault.set(HttpFault.HTML)
    answer = get(server.url)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.text.startswith("<!DOCTYPE html>")


def test_truncated_body_breaks_in_the_middle(server):
    server.fault.set(HttpFault.TRUNCATED)
    with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
        get(server.url)


def test_slow_endpoint_answers_in_the_end(server):
    server.fault.set(HttpFault.SLOW)
    with pytest.raises(requests.ReadTimeout):
        get(server.url, timeout=0.01)
    assert get(server.url).status_code == 200


def test_load_freeze_thaw_and_abort_reach_the_simulation(server, clock):
    server.freeze()
    clock.now += 5.0
    frozen = [server.metrics() for _ in range(2)]
    assert number(frozen[1], "vllm:generation_tokens_total") == number(frozen[0], "vllm:generation_tokens_total")
    server.thaw()
    clock.now += 2.0
    server.catch_up()
    assert number(server.metrics(), "vllm:generation_tokens_total") > number(frozen[1], "vllm:generation_tokens_total")
    server.abort_clients()
    server.set_load(OpenLoop(1.0, Fixed(10), Fixed(10)))
    clock.now += 5.0
    server.catch_up()
    assert number(server.metrics(), "vllm:num_requests_running") <= 3


def test_scheduled_restart_closes_the_port(clock):
    simulation = Simulation(STARVED, profile=CPU_25M)
    with SimulatorServer(simulation, clock=clock, faults=(ScheduledFault(Fault.RESTART, 5.0, 10.0),)) as server:
        assert get(server.url).status_code == 200
        clock.now += 6.0
        server.catch_up()
        assert server.metrics() == ""
        with pytest.raises(requests.ConnectionError):
            get(server.url)
        clock.now += 10.0
        server.catch_up()
        assert get(server.url).status_code == 200


def test_closing_twice_frees_the_port_once(clock):
    server = SimulatorServer(Simulation(), clock=clock)
    port = server.port
    server.close()
    server.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_closing_ends_a_hanging_answer(clock):
    with SimulatorServer(Simulation(), clock=clock) as server:
        server.fault.set(HttpFault.HANG)
        client = socket.create_connection(("127.0.0.1", server.port), timeout=5.0)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        server.close()
    with client:
        try:
            rest = client.recv(1)
        except ConnectionResetError:  # closed before it had read the request
            rest = b""
        assert rest == b""


def test_taken_port_is_an_error(clock):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        SimulatorServer(Simulation(), port=taken.getsockname()[1], clock=clock)


def test_speed_must_be_positive(clock):
    with pytest.raises(UsageError, match="a speed must be positive: 0"):
        SimulatorServer(Simulation(), speed=0.0, clock=clock)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--prompt", "zero"], "are no lengths", id="lengths"),
        pytest.param(["--fault", "quake@3s"], "is no fault", id="fault"),
        pytest.param(["--num-gpu-blocks", "3"], "does not fit the KV cache", id="pool"),
        pytest.param(["--arrivals", "/nowhere.csv"], "cannot read arrivals", id="arrivals"),
        pytest.param(["--concurrency", "0"], "--concurrency must be at least 1", id="concurrency"),
        pytest.param(["--rate", "-1"], "--rate must not be negative", id="rate"),
        pytest.param(["--shared-prefix", "-1"], "--shared-prefix must not be negative", id="shared prefix"),
        pytest.param(["--speed", "0"], "a speed must be positive", id="speed"),
        pytest.param(["--port", "70000"], "cannot listen on", id="port"),
    ],
)
def test_flags_that_make_no_sense_are_one_line_and_exit_code_2(argv, message, monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr("sys.stderr", errors)
    assert main(argv) == 2
    assert message in errors.getvalue()
    assert errors.getvalue().count("\n") == 1


def test_flags_say_what_vllms_do():
    arguments = build_parser().parse_args(
        [
            "--num-gpu-blocks-override",
            "160",
            "--block-size",
            "32",
            "--max-model-len",
            "4096",
            "--no-enable-prefix-caching",
            "--rate",
            "5",
            "--burst",
            "2",
        ]
    )
    assert server_config(arguments) == replace(STARVED, enable_prefix_caching=False)
    load = load_from(arguments)
    assert isinstance(load, OpenLoop)
    assert (load.rate, load.burst) == (5.0, 2)


def test_default_load_fills_a_third_of_the_default_cache():
    arguments = build_parser().parse_args([])
    simulation = Simulation(server_config(arguments), load_from(arguments), profile=GPU_8B, seed=1)
    usage = []
    for now in range(20, 80):
        simulation.advance(float(now))
        usage.append(simulation.engines[0].counters.gauges.usage)
    assert 0.2 < sum(usage) / len(usage) < 0.9
    assert all(abs(one - two) < 0.4 for one, two in pairwise(usage))


@pytest.mark.parametrize(
    ("error", "told"),
    [pytest.param(ConnectionResetError(), False, id="client hung up"), pytest.param(ValueError("a bug"), True, id="a bug of ours")],
)
def test_only_errors_of_ours_are_printed(server, capsys, error, told):
    try:
        raise error
    except (OSError, ValueError):
        server._front.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is told
