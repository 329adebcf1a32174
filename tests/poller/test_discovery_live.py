"""A running kvwatch follows pods that come and go: two simulated vLLMs on two loopback addresses, a name and a file that change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from name_server import NameServer

from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.model import TargetView
from kvwatch.poller.sharding import shard_of
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.load import ClosedLoop, parse_lengths
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation

PODS = "vllm-pods.serving.svc.cluster.local."


@pytest.fixture
def port() -> Iterator[int]:
    """The port on which two simulated vLLMs answer, at 127.0.0.1 and 127.0.0.2, as pods do behind one headless Service."""
    clock = SystemClock()

    def pod(host: str, number: int) -> SimulatorServer:
        load = ClosedLoop(2, parse_lengths("100"), parse_lengths("50"))
        return SimulatorServer(Simulation(ServerConfig(), load, start_unix=clock.unix()), host=host, port=number, clock=clock)

    with pod("127.0.0.1", 0) as first:
        number = int(first.url.split(":")[2].split("/")[0])
        with pod("127.0.0.2", number):
            yield number


@pytest.fixture
def watching() -> Iterator[Callable[..., Daemon]]:
    daemons = []

    def started(**discovery) -> Daemon:
        targets, shard = discovery.pop("targets", []), discovery.pop("shard", "0/1")
        settings = Settings(
            targets=targets,
            shard=shard,
            discovery={"refresh": 0.2, **discovery},
            poll={"interval": 0.2},
            web={"listen_address": "127.0.0.1:0"},
        )
        daemon = Daemon(settings, SystemClock())
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield started
    for daemon in daemons:
        daemon.stop()


def until_watched(daemon: Daemon, *names: str) -> None:
    """Wait until exactly these targets are watched, each has answered, and kvwatch says that it is ready."""
    views: tuple[TargetView, ...] = ()
    for _ in range(300):
        views = daemon.views()
        answered = all(view.last_success_at is not None for view in views)
        if [view.name for view in views] == sorted(names) and answered and daemon.ready():
            return
        time.sleep(0.1)
    pytest.fail(f"watched instead: {[(view.name, view.failure) for view in views]}")


def test_pods_behind_a_name_come_and_go_under_a_running_kvwatch(port, watching):
    server = NameServer()
    try:
        server.records[PODS, "A"] = ["127.0.0.1"]
        daemon = watching(targets=[{"url": f"dns+http://{PODS}:{port}/metrics", "name": "vllm"}], dns_server=server.address)
        until_watched(daemon, f"vllm/127.0.0.1:{port}")
        server.records[PODS, "A"] = ["127.0.0.1", "127.0.0.2"]
        until_watched(daemon, f"vllm/127.0.0.1:{port}", f"vllm/127.0.0.2:{port}")
        server.records[PODS, "A"] = ["127.0.0.2"]
        until_watched(daemon, f"vllm/127.0.0.2:{port}")
    finally:
        server.close()


def test_a_file_that_changes_is_followed_by_a_running_kvwatch(port, watching, tmp_path):
    file = tmp_path / "vllm.json"

    def name_targets(*hosts: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(json.dumps([{"targets": [host], "labels": {"instance": f"gpu-{host.split(':')[0][-1]}"}} for host in hosts]))
        fresh.rename(file)

    daemon = watching(files=[str(tmp_path / "*.json")])
    until_watched(daemon)
    name_targets(f"127.0.0.1:{port}", f"127.0.0.2:{port}")
    until_watched(daemon, "gpu-1", "gpu-2")
    name_targets(f"127.0.0.2:{port}")
    until_watched(daemon, "gpu-2")
    file.unlink()
    until_watched(daemon)


def test_two_shards_of_a_running_fleet_watch_every_pod_once_and_both_are_ready(port, watching):
    targets = [f"http://127.0.0.1:{port}/metrics", f"http://127.0.0.2:{port}/metrics"]
    parts = [[url for url in targets if shard_of(url, 2) == shard] for shard in range(2)]
    daemons = [watching(targets=targets, shard=f"{shard}/2") for shard in range(2)]
    for daemon, part in zip(daemons, parts, strict=True):
        until_watched(daemon, *part)
        assert daemon.healthy()
