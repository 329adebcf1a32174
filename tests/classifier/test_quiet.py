"""How patient one is with a silent engine, and what its own spells teach; the least patience is 10 s."""

from __future__ import annotations

import pytest
from builders import snapshot

from kvwatch.classifier.quiet import Quiet


def lived(*steps, stall=10.0):
    """An engine with two running requests and at each (second, tokens so far[, waiting]) a scrape."""
    quiet = Quiet(stall)
    for at, tokens, *waiting in steps:
        quiet.note(snapshot(float(at), running=2.0, waiting=float(waiting[0]) if waiting else 0.0, generation_tokens=float(tokens)))
    return quiet


@pytest.mark.parametrize(
    ("steps", "patience"),
    [
        pytest.param([(0, 0)], 15.0, id="the batch has just come: a prompt may be under way"),
        pytest.param([(0, 0), (5, 1)], 10.0, id="it decodes"),
        pytest.param([(0, 0), (5, 1, 1)], 15.0, id="somebody waits"),
        pytest.param([(0, 0), (5, 1), (10, 1), (13, 2)], 10.0, id="quiet until the scrape at 10 s: five seconds, less than the least"),
        pytest.param([(0, 0), (5, 1), (10, 1), (13, 1), (14, 2)], 12.0, id="eight seconds of quiet that ended by themselves"),
        pytest.param([(0, 0), (5, 1), (14, 1), (20, 1), (21, 2)], 22.5, id="fifteen seconds"),
        pytest.param([(0, 0), (5, 1), (14, 1), (21, 1), (22, 2)], 10.0, id="more than half again the patience: a stall, no step"),
        pytest.param([(0, 0), (5, 1), (14, 1), (15, 2), (19, 2), (20, 3)], 13.5, id="the longest counts"),
    ],
)
def test_patience_follows_the_engines_own_steps(steps, patience):
    assert lived(*steps).patience() == pytest.approx(patience)


def test_a_spell_is_forgotten_after_half_an_hour():
    taught = [(0, 0), (5, 1), (14, 1), (15, 2)]
    assert lived(*taught, (1815, 3)).patience() == pytest.approx(13.5)
    assert lived(*taught, (1816, 3)).patience() == pytest.approx(10.0)


@pytest.mark.parametrize(("restarted", "patience", "since"), [(False, 13.5, True), (True, 10.0, False)])
def test_what_was_learnt_goes_with_the_process_only(restarted, patience, since):
    quiet = lived((0, 0), (5, 1), (14, 1), (15, 2), (20, 2), (60, 2), (61, 3), (62, 4))
    assert quiet.thawed_since(61.0)
    assert not quiet.thawed_since(61.1)
    quiet.end(restarted=restarted)
    assert quiet.patience() == pytest.approx(patience)
    assert quiet.thawed_since(0.0) is since
    assert (quiet.seconds_without_life(), quiet.seconds_without_progress()) == (None, None)
