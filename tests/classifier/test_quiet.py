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


@pytest.mark.parametrize(("seconds", "fill"), [(26.9, True), (27.0, False)])
def test_three_of_the_longest_steps_fill_a_window(seconds, fill):
    assert lived((0, 0), (5, 1), (14, 1), (15, 2)).steps_fill(seconds) is fill


@pytest.mark.parametrize(("restarted", "patience", "since"), [(False, 13.5, True), (True, 10.0, False)])
def test_what_was_learnt_goes_with_the_process_only(restarted, patience, since):
    quiet = lived((0, 0), (5, 1), (14, 1), (15, 2), (20, 2), (60, 2), (61, 3), (62, 4))
    assert quiet.thawed_since(61.0)
    assert not quiet.thawed_since(61.1)
    quiet.end(restarted=restarted)
    assert quiet.patience() == pytest.approx(patience)
    assert quiet.thawed_since(0.0) is since
    assert (quiet.seconds_without_life(), quiet.seconds_without_progress()) == (None, None)


def silent(*steps, running=1.0):
    """The last token at 0 s, and then at each (second, KV usage) a scrape without one."""
    quiet = Quiet(10.0)
    for at, usage in ((0.0, 0.1), *steps):
        quiet.note(snapshot(float(at), running=running, waiting=1.0, generation_tokens=7.0, kv_usage=usage))
    return quiet.seconds_without_progress()


@pytest.mark.parametrize(
    ("steps", "running", "silence"),
    [
        pytest.param([(60, 0.4), (120, 0.7), (180, 0.9)], 1.0, 0.0, id="a prompt in chunks holds more and more"),
        pytest.param([(60, 0.4), (120, 0.4)], 1.0, 60.0, id="it holds no more than before"),
        pytest.param([(60, 0.9), (90, 0.1), (120, 0.5), (180, 0.9), (200, 0.1)], 1.0, 140.0, id="the same prompt over and over"),
        pytest.param([(60, None), (120, None)], 1.0, 120.0, id="usage is not known"),
        pytest.param([(60, 0.4), (120, 0.7)], 0.0, 120.0, id="nothing runs: what grows are transfers"),
    ],
)
def test_a_prompt_that_gets_further_is_progress(steps, running, silence):
    assert silent(*steps, running=running) == silence


@pytest.mark.parametrize(
    ("before", "now", "patience"),
    [
        pytest.param(0.0, 1.0, 15.0, id="the first one came"),
        pytest.param(None, 1.0, 15.0, id="none was known before"),
        pytest.param(1.0, 1.0, 10.0, id="as many as before"),
        pytest.param(2.0, 1.0, 10.0, id="one left"),
        pytest.param(0.0, 0.0, 10.0, id="nobody came"),
    ],
)
def test_a_batch_that_has_grown_may_have_a_prompt_under_way(before, now, patience):
    quiet = Quiet(10.0)
    for at, running in ((0.0, 1.0), (5.0, before), (10.0, now)):
        quiet.note(snapshot(at, running=running, generation_tokens=at))
    assert quiet.patience() == patience


@pytest.mark.parametrize(
    ("running", "waiting", "mean", "patience"),
    [
        pytest.param(2.0, 1.0, 20.0, 30.0, id="a prompt may be under way, and prompts take 20 s"),
        pytest.param(2.0, 1.0, 4.0, 15.0, id="prompts are quick"),
        pytest.param(2.0, 0.0, 20.0, 10.0, id="nobody waits and the batch has not grown"),
    ],
)
def test_patience_with_a_prompt_under_way_follows_what_prompts_took(running, waiting, mean, patience):
    quiet = Quiet(10.0)
    for at in (0.0, 5.0):
        counters = {"generation_tokens": at, "finished": 8.0, "prefill_time_sum": 8.0 * mean}
        quiet.note(snapshot(at, running=running, waiting=waiting, **counters))
    assert quiet.patience() == pytest.approx(patience)
