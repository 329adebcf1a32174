"""What is said was looked at: every figure in the evidence is one of the signals of the same scrape, or policy."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass

import pytest
from playing import decimated

from kvwatch.classifier.rules.pressure import fullness, share_needed
from kvwatch.classifier.target import TargetClassifier
from kvwatch.config.policy import Policy
from kvwatch.incident.recording import Reader
from kvwatch.model import Signals
from kvwatch.poller.vllm import parse_scrape
from kvwatch.text import number, percent

FIGURE = re.compile(r"\d{1,3}(?: \d{3})*(?:\.\d+)?(?: %)?")


def leaves(value: object) -> list[float]:
    """Every number in a tree of signals."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int | float):
        return [float(value)]
    return [leaf for one in fields(value) for leaf in leaves(getattr(value, one.name))] if is_dataclass(value) else []


def sayable(signals: Signals) -> set[str]:
    """The ways in which the rules may write the signals and what follows from them."""
    full, needed, pool = fullness(signals), share_needed(signals), signals.capacity_tokens
    derived = [value for value in (full, needed, None if full is None else 1 - full) if value is not None]
    tokens = [share * pool for share in derived] if pool else []
    numbers = leaves(signals) + derived + tokens
    return {number(value) for value in numbers} | {percent(value) for value in numbers} | {f"{value:.2f}" for value in numbers}


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0])
def test_every_figure_in_the_evidence_is_a_signal(recordings, interval):
    unseen = set()
    for path in recordings:
        classifier = TargetClassifier(Policy(), interval=interval)
        with Reader(path, pytest.fail) as reader:
            for entry in decimated(iter(reader), interval):
                if entry.body is None or b"vllm:num_requests_running" not in entry.body:
                    continue
                for said in classifier.observe(parse_scrape(entry.body, entry.t, entry.t)):
                    if said.signals is not None:
                        known = sayable(said.signals)
                        figures = {figure.strip() for line in said.verdict.evidence for figure in FIGURE.findall(line)}
                        unseen |= {(path.name, figure, said.verdict.evidence) for figure in figures if figure not in known}
    assert unseen == set()
