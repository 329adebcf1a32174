from __future__ import annotations

from builders import ENGINE

from kvwatch.classifier.overflow import with_overflow
from kvwatch.model import Assessment, Cause, State, Verdict

FOUND = (Assessment(Verdict(ENGINE, State.HEALTHY, Cause.OK, ("3 running",), 0.0), None),)


def test_while_every_engine_is_judged_nothing_is_added():
    assert with_overflow(FOUND, 0) == FOUND


def test_how_many_engines_are_left_out_ends_the_evidence_of_those_that_are_not():
    (said,) = with_overflow(FOUND, 2)
    assert said.verdict.evidence[0] == "3 running"
    assert said.verdict.evidence[-1].startswith("overflow: 2 more engines of this target not judged")
