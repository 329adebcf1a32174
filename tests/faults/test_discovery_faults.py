"""A file of targets may hold anything: it costs that file, is named, and is read again."""

from __future__ import annotations

import os

import pytest

from kvwatch.config.settings import DiscoverySettings
from kvwatch.poller.discovery import Discovery

GOOD = '[{"targets": ["good:8000"]}]'


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("!!bool foo", id="tag"),
        pytest.param("!!int ''", id="empty-int"),
        pytest.param('[{"targets": ["a:1"], "labels": {"instance": "\\u0000"}}]', id="nul-name"),
        pytest.param('[{"targets": ["\ud800"]}]', id="surrogate"),
        pytest.param('[{"targets": [1e999]}]', id="number"),
        pytest.param('[{"targets": ["x:99999999999"]}]', id="port"),
        pytest.param("a: &a [*a]", id="alias-of-itself"),
        pytest.param("\ufeff\x00\x01", id="control"),
        pytest.param("x" * 2_000_000, id="large"),
    ],
)
def test_a_bad_file_costs_only_itself_and_is_read_again(tmp_path, suffix, content):
    bad = tmp_path / f"bad{suffix}"
    bad.write_bytes(content.encode("utf-8", "surrogatepass"))
    (tmp_path / "good.json").write_text(GOOD)
    discovery = Discovery([], DiscoverySettings(files=[str(tmp_path / "*")]))
    found = discovery.discover()
    assert "http://good:8000/metrics" in [target.url for target in found.targets]
    assert all("\n" not in error and error.isprintable() for error in found.errors)
    assert [error.startswith(str(bad)) for error in found.errors] in ([True], [])
    bad.write_text(GOOD.replace("good", "mended"))
    assert "http://mended:8000/metrics" in [target.url for target in discovery.discover().targets]


def test_a_fifo_is_no_file_of_targets(tmp_path, seconds):
    os.mkfifo(tmp_path / "a.yaml")
    (tmp_path / "good.json").write_text(GOOD)
    discovery, found = Discovery([], DiscoverySettings(files=[str(tmp_path / "*")])), []
    assert seconds(lambda: found.append(discovery.discover())) < 20.0
    assert [target.url for target in found[0].targets] == ["http://good:8000/metrics"]
    assert found[0].errors[0].endswith("not a regular file; keeping the 0 targets it last named")
