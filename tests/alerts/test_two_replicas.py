"""Two healthy replicas answer under one URL, as a load balancer or a Service would have them: nobody is paged for it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Reader
from kvwatch.model import Cause
from kvwatch.poller.vllm import parse_scrape

RECORDINGS: Final = Path(__file__).parent.parent / "data" / "recordings"
POLLS: Final = 200
CHANCE: Final = random.Random(1)  # noqa: S311 - a seed is to be repeated
WHO: Final[dict[str, list[int]]] = {
    "in turn": [poll % 2 for poll in range(POLLS)],
    "ten times each": [poll // 10 % 2 for poll in range(POLLS)],
    "by chance": [CHANCE.randrange(2) for _ in range(POLLS)],
    "the second once in seven": [int(poll % 7 == 6) for poll in range(POLLS)],
}


def bodies(name: str) -> list[bytes]:
    with Reader(RECORDINGS / f"{name}.jsonl.xz", pytest.fail) as reader:
        return [entry.body for entry in islice(reader, POLLS) if entry.body is not None]


@pytest.mark.parametrize("who", WHO)
def test_two_healthy_replicas_behind_one_url_are_ambiguous_and_alert_nobody(who: str) -> None:
    judge = judge_for(Settings(), interval=1.0)
    replicas = [bodies(name) for name in ("healthy_steady", "healthy_bursts")]
    causes: Counter[Cause] = Counter()
    alerts = set()
    for poll, replica in zip(range(min(map(len, replicas))), WHO[who], strict=False):
        told = judge.scraped(parse_scrape(replicas[replica][poll], float(poll), 2e9 + poll))
        causes.update(one.verdict.cause for one in told.assessments)
        alerts |= {alert.name for alert in (*told.alerts, *(alert for one in told.assessments for alert in one.alerts))}
    assert alerts == set()
    assert causes.keys() <= {Cause.AMBIGUOUS, Cause.WARMING_UP, Cause.OK, Cause.IDLE}
    assert causes[Cause.AMBIGUOUS] > causes.total() / 2
