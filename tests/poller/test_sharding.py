"""Several kvwatches share a fleet: every target is watched once, and a change of their number moves few."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvwatch.config.settings import DiscoverySettings, Settings, TargetSettings
from kvwatch.config.values import parse_shard
from kvwatch.poller.discovery import Discovery
from kvwatch.poller.sharding import shard_of

FLEET = [f"http://10.1.{number // 100}.{number % 100 + 1}:8000/metrics" for number in range(300)]
URLS = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1).map("http://{}:8000/metrics".format), unique=True)


def watched(urls, shard):
    targets = [TargetSettings(url=url) for url in urls]
    return [target.url for target in Discovery(targets, DiscoverySettings(), shard=shard).discover().targets]


@given(URLS, st.integers(1, 9))
def test_every_target_is_watched_by_exactly_one_shard(urls, total):
    parts = [watched(urls, (shard, total)) for shard in range(total)]
    assert sorted(url for part in parts for url in part) == sorted(urls)


@given(URLS, st.integers(1, 9))
def test_a_further_shard_takes_targets_and_moves_none_between_the_others(urls, total):
    for url in urls:
        assert shard_of(url, total + 1) in {shard_of(url, total), total}


@pytest.mark.parametrize("total", [2, 3, 5, 8])
def test_a_fleet_of_300_is_shared_out_evenly(total):
    """A fair die with *total* sides thrown 300 times: within four standard deviations of 300 ÷ total."""
    fair, deviation = 300 / total, (300 / total * (1 - 1 / total)) ** 0.5
    counts = Counter(shard_of(url, total) for url in FLEET)
    assert sorted(counts) == list(range(total))
    assert all(abs(count - fair) < 4 * deviation for count in counts.values())


def test_where_a_target_belongs_is_no_matter_of_the_process_or_the_release():
    """A change here moves most targets of every fleet, and their histories begin anew: it needs a line in the changelog."""
    assert [shard_of(url, 3) for url in FLEET[:6]] == [1, 2, 2, 0, 2, 0]


def test_scaling_from_two_to_five_shards_step_by_step_moves_the_share_of_the_new_one():
    for before, after in pairwise(range(2, 6)):
        moved = sum(shard_of(url, before) != shard_of(url, after) for url in FLEET)
        assert moved == sum(shard_of(url, after) == before for url in FLEET)
        assert moved < 300 / after * 1.3


def test_fixed_targets_are_shared_out_before_anything_is_looked_up():
    targets = [*(TargetSettings(url=url) for url in FLEET[:20]), TargetSettings(url="dns+http://pods:8000/metrics")]
    parts = [Discovery(targets, DiscoverySettings(), shard=(shard, 2)).fixed() for shard in range(2)]
    assert all(parts)
    assert sorted(target.url for part in parts for target in part) == sorted(FLEET[:20])


def test_names_are_told_apart_before_they_are_shared_out(tmp_path):
    """All shards must agree on which of two targets of one name counts."""
    groups = [f"- targets: ['{host}:8000']\n  labels: {{instance: same}}\n" for host in ("a", "b", "c", "d")]
    (tmp_path / "fleet.yml").write_text("".join(groups))
    settings = DiscoverySettings(files=[str(tmp_path / "*.yml")])
    found = [Discovery([], settings, shard=(shard, 2)).discover() for shard in range(2)]
    assert [target.url for one in found for target in one.targets] == ["http://a:8000/metrics"]


@pytest.mark.parametrize(("text", "shard"), [("0/1", (0, 1)), ("2/3", (2, 3)), (" 0/100 ", (0, 100))])
def test_a_shard_is_written_i_of_n(text, shard):
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    "text", ["", "1", "/3", "1/", "3/3", "-1/3", "0/0", "1/2/3", "a/b", "0/101", "0/9999", "+0/1", "0x1/3", "\u0661/3"]
)
def test_what_is_no_shard_is_told(text):
    with pytest.raises(ValidationError, match=r"is not a shard: write i/n, counted from 0"):
        Settings(shard=text)


def test_the_shard_of_a_pod_comes_from_its_environment(monkeypatch):
    """As the chart sets it: the pod's index, and how many there are."""
    monkeypatch.setenv("KVWATCH_SHARD", "2/3")
    assert Settings().shard == "2/3"
