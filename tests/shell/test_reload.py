"""The configuration read again while everything goes on: by SIGHUP, and over HTTP where that is enabled."""

from __future__ import annotations

import contextlib
import json
import signal
import urllib.request

import pytest
from live_process import PATIENCE, Process, eventually, get
from peers import answer
from shell_fakes import scrape

from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.daemon.reloading import Reloading
from kvwatch.errors import ConfigError
from kvwatch.poller.sharding import shard_of

WEB = {"listen_address": "127.0.0.1:0"}
POLL = {"interval": "0.1s"}


def settings(*names, **sections):
    targets = [{"name": name, "url": f"http://{name}/metrics"} for name in names]
    return Settings(targets=targets, **{"web": WEB, "poll": POLL, **sections})


@pytest.fixture
def daemon():
    made = Daemon(settings("a", "b"), SystemClock(), lambda _: scrape(SystemClock().monotonic()))
    with contextlib.closing(Closing(made)):
        made.start()
        assert eventually(made.ready)
        yield made


class Closing:
    def __init__(self, daemon):
        self.close = daemon.stop


def names(daemon):
    return [view.name for view in daemon.views()]


def test_targets_come_and_go_and_those_that_stay_keep_their_history(daemon):
    assert eventually(lambda: daemon._targets._watches["b"].view.assessments)
    kept = daemon._targets._watches["b"]
    assert daemon.reload(settings("b", "c")) == ()
    assert eventually(lambda: names(daemon) == ["b", "c"])
    assert daemon._targets._watches["b"] is kept
    assert eventually(daemon.ready)


def test_another_shard_is_another_part_of_the_same_targets(daemon):
    def shards():
        return [(sample.labels, sample.value) for family in daemon._telemetry.registry.collect() for sample in family.samples
                if sample.name == "kvwatch_shards"]  # fmt: skip

    assert shards() == [({"shard": "0"}, 1)]
    part = [name for name in ("a", "b", "c", "d") if shard_of(f"http://{name}/metrics", 2) == 1]
    assert 0 < len(part) < 4
    daemon.reload(settings("a", "b", "c", "d", shard="1/2"))
    assert eventually(lambda: names(daemon) == part)
    assert shards() == [({"shard": "1"}, 2)]


def test_a_target_of_another_url_under_the_same_name_begins_anew(daemon):
    before = daemon._targets._watches["b"]
    elsewhere = settings("b").targets[0].model_copy(update={"url": "http://x/"})
    moved = settings("a").model_copy(update={"targets": [*settings("a").targets, elsewhere]})
    daemon.reload(moved)
    assert eventually(lambda: daemon._targets._watches["b"] is not before)
    assert daemon._targets._watches["b"].target.url == "http://x/"


def test_thresholds_windows_and_what_is_known_hold_from_the_next_poll_on(daemon):
    judge = daemon._targets._watches["a"]._judge
    engine = next(iter(judge._classifier._engines.values()))
    remembered = len(engine._history._snapshots)
    daemon.reload(
        settings(
            "a", "b", thresholds={"kv_watermark": 0.5, "stall": "20s"}, window={"fast": "40s", "slow": "300s"}, vllm={"max_num_seqs": 7}
        )
    )
    assert eventually(lambda: judge._classifier._policy.thresholds.kv_watermark == 0.5)
    assert next(iter(judge._classifier._engines.values())) is engine
    assert engine._policy.window.slow == 300.0
    assert (engine._history._span, engine._history.quiet.stall, engine._history.traffic.span) == (300.0, 20.0, 300.0)
    assert len(engine._history._snapshots) >= remembered
    assert judge._classifier._known.max_num_seqs == 7
    assert "300 s" in get(f"{daemon.url}/metrics")[1]


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"poll": {"interval": "0.2s"}}, ("poll.interval",)),
        ({"web": {"listen_address": "127.0.0.1:1"}}, ("web.listen_address",)),
        ({"log": {"level": "debug"}}, ("log.level",)),
        ({"alertmanager": {"urls": ["http://am:9093"]}}, ("alertmanager.urls",)),
        ({"poll": {"interval": "0.1s", "timeout": "0.05s"}}, ()),
    ],
)
def test_what_only_a_restart_changes_is_named(daemon, sections, named):
    assert daemon.reload(settings("a", "b", **sections)) == named


def test_a_configuration_that_cannot_be_used_changes_nothing(daemon):
    before = daemon._settings
    broken = Settings(targets=["dns+http://name:1/metrics"], discovery={"dns_server": "no address"}, web=WEB)
    with pytest.raises(ConfigError):
        daemon.reload(broken)
    assert daemon._settings is before
    assert names(daemon) == ["a", "b"]


def test_a_configuration_that_cannot_be_read_is_told_and_counted(daemon):
    def read():
        raise ConfigError(["poll.interval: it is no duration"])

    reloading = Reloading(read)
    assert reloading() == ("kvwatch is still starting",)
    reloading.daemon = daemon
    assert reloading() == ("poll.interval: it is no duration",)
    assert "kvwatch_config_last_reload_successful 0.0" in get(f"{daemon.url}/metrics")[1]
    reloading = Reloading(lambda: settings("a"))
    reloading.daemon = daemon
    assert reloading() == ()
    assert "kvwatch_config_last_reload_successful 1.0" in get(f"{daemon.url}/metrics")[1]


@pytest.fixture
def configured(tmp_path, peer):
    """A process with a configuration file, which a test may write again."""
    server = peer(lambda connection, _stopped: connection.sendall(answer()))
    file = tmp_path / "kvwatch.yaml"

    def write(*targets, **more):
        file.write_text(json.dumps({"targets": [{"name": name, "url": server.url} for name in targets][:1], **more}))

    write("first")
    processes = []

    def start(*arguments):
        processes.append(Process(f"--config.file={file}", *arguments))
        return processes[-1], processes[-1].event("kvwatch.started")["url"]

    yield start, write, file
    for process in processes:
        process.close()


def test_sighup_reads_the_file_again_and_a_bad_one_changes_nothing(configured):
    start, write, file = configured
    process, url = start()
    write("second")
    process.process.send_signal(signal.SIGHUP)
    process.event("config.reloaded")
    assert eventually(lambda: 'kvwatch_target_up{target="second"}' in get(f"{url}/metrics")[1])
    file.write_text("targets: [")
    process.process.send_signal(signal.SIGHUP)
    assert len(process.event("config.not_reloaded")["errors"]) == 1
    assert 'kvwatch_target_up{target="second"}' in get(f"{url}/metrics")[1]
    took, code = process.end(signal.SIGTERM)
    assert code == 0
    assert took < PATIENCE


def test_reloading_over_http(configured):
    start, write, _ = configured
    _, url = start("--web.enable-lifecycle")
    write("second")
    request = urllib.request.Request(f"{url}/-/reload", method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        assert response.status == 200
    assert eventually(lambda: 'kvwatch_target_up{target="second"}' in get(f"{url}/metrics")[1])
