"""What is said beside every verdict while a target has more engines than are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvwatch.model import MOST_ENGINES, Assessment
from kvwatch.text import counted


def with_overflow(assessments: Sequence[Assessment], dropped: int) -> Sequence[Assessment]:
    """The same assessments, their evidence ending with the number of engines of this scrape that have none: *dropped*."""
    if not dropped:
        return assessments
    said = (
        f"overflow: {counted(dropped, 'more engine')} of this target not judged (at most {MOST_ENGINES} are, and none with an endless name)"
    )
    return tuple(replace(one, verdict=replace(one.verdict, evidence=(*one.verdict.evidence, said))) for one in assessments)
