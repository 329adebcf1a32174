"""The table of times in docs/alerts.md is kept: no alert comes or goes later than it says."""

from __future__ import annotations

from itertools import product

import pytest
from guarantees import INTERVALS, LOSSES, ROADS, measured, stated

from kvwatch.alerts.registry import DEFINITIONS

STATED = stated()


def test_the_table_has_every_alert_by_both_roads() -> None:
    assert set(STATED) == set(product(DEFINITIONS, ROADS))


@pytest.mark.parametrize(("place", "interval", "lost"), [(n, *pair) for n, pair in enumerate(product(INTERVALS, LOSSES))])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_no_alert_comes_or_goes_later_than_the_table_says(name: str, place: int, interval: float, lost: float) -> None:
    for road, (come, gone) in measured(name, interval, lost).items():
        most_come, most_gone = STATED[name, road][place]
        assert (come <= most_come, gone <= most_gone) == (True, True), (road, come, gone)
