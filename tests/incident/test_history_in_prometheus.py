"""A real Prometheus with the history of a recording is judged as the recording is; all of them: ``tests/incident/history.py``."""

from __future__ import annotations

import pytest
from history import Agreement, agreement, compared, open_metrics

from kvwatch.incident.recording import Entry


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "interval"),
    [
        pytest.param("dp2_one_starved", 5.0, id="two engines"),
        pytest.param("restart_under_storm", 1.0, id="a restart, scrapes that failed"),
        pytest.param("kv_storm", 15.0, id="a usual scrape interval"),
    ],
)
def test_the_same_states_and_the_same_pages(require_tool, repository, name, interval):
    tools = require_tool("prometheus").parent
    assert require_tool("promtool").parent == tools
    found = agreement(repository / "tests" / "data" / "recordings" / f"{name}.jsonl.xz", interval, tools)
    assert found.scrapes > 10
    assert found.share >= 0.98, found.different
    assert found.pages
    assert found.pages_within(interval)


def row(t, state, *alerts):
    return {"t": t, "engine": "0", "state": state, "cause": "ok", "alerts": alerts}


def test_what_only_one_of_them_says_is_different():
    found = compared([row(0.0, "healthy"), row(5.0, "healthy"), row(10.0, "kv_bound")], [row(0.0, "healthy"), row(5.0, "kv_bound")])
    assert (found.scrapes, found.same_state) == (3, 1)
    assert found.share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("pages", "within"),
    [
        ({}, True),
        ({"PreemptionStorm": (10.0, 14.0)}, True),
        ({"PreemptionStorm": (10.0, 16.0)}, False),
        ({"EngineStalled": (10.0, None)}, False),
    ],
)
def test_pages_are_compared_by_their_first_time(pages, within):
    assert Agreement(1, 1, 1, pages, ()).pages_within(5.0) is within


def test_a_scrape_is_written_as_samples_with_their_time():
    text = "".join(open_metrics([Entry(10.0, b'# HELP x y\nx{a="b"} 1\nz 2\n', None), Entry(15.0, None, "timeout: lost")]))
    assert text.splitlines() == [
        'up{job="vllm",instance="vllm-0:8000"} 1 10.000',
        'up{job="vllm",instance="vllm-0:8000"} 0 15.000',
        'x{job="vllm",instance="vllm-0:8000",a="b"} 1 10.000',
        'z{job="vllm",instance="vllm-0:8000"} 2 10.000',
        "# EOF",
    ]
