"""How large a batch was and how much a step computed, worked out from counters; the largest count ever seen is 8."""

from __future__ import annotations

import pytest
from builders import histogram, snapshot

from kvwatch.classifier.batch import batch_of, largest, tokens_per_step


def pair(*, steps=100.0, outputs=400.0, spent=None, firsts=None, prefill=None, **gains):
    """Two snapshots ten seconds apart, between which the counters gained so much; what is ``None`` is not reported."""
    spent_at = [None, None] if spent is None else [1.0, 1.0 + spent]
    ends = []
    for part, at in ((0.0, 0.0), (1.0, 10.0)):
        fields = {name: part * value for name, value in gains.items()}
        fields["steps"] = None if steps is None else part * steps
        if outputs is not None:
            fields["inter_token_latency"] = histogram(0, 0, part * outputs, total=spent_at[int(part)])
        if firsts is not None:
            fields["time_to_first_token"] = histogram(0, 0, part * firsts)
        if prefill is not None:
            fields["prefill_time_sum"] = 5.0 + part * prefill
        ends.append(snapshot(at, **fields))
    return ends[0], ends[1]


@pytest.mark.parametrize(
    ("gains", "decoding", "held"),
    [
        pytest.param({}, 4.0, 4.0, id="four tokens a step"),
        pytest.param({"firsts": 100.0}, 5.0, 5.0, id="and a first one"),
        pytest.param({"firsts": 0.0}, 4.0, 4.0, id="no first one in these"),
        pytest.param({"spent": 60.0}, 6.0, 6.0, id="sixty seconds were spent in ten"),
        pytest.param({"spent": 60.0, "prefill": 20.0}, 6.0, 8.0, id="and twenty in prefill"),
        pytest.param({"spent": 30.0}, 4.0, 4.0, id="several API servers count fewer outputs a step, not more"),
        pytest.param({"spent": 60.0, "preemptions": 1.0}, 4.0, 4.0, id="the wait of a victim is no decoding"),
        pytest.param({"steps": None}, None, None, id="neither steps nor time"),
        pytest.param({"steps": None, "spent": 160.0}, 16.0, 16.0, id="twice as many as were ever seen"),
        pytest.param({"steps": None, "spent": 161.0}, None, None, id="more than twice: a clock that jumped"),
        pytest.param({"steps": 0.0, "outputs": 0.0, "spent": 0.0}, 0.0, 0.0, id="nothing came out"),
        pytest.param({"outputs": None}, None, None, id="no inter-token latency"),
    ],
)
def test_sequences_in_the_batch(gains, decoding, held):
    first, last = pair(**gains)
    found = batch_of(first, last, 8.0)
    assert (found.decoding, found.held) == (decoding, held)


def test_first_tokens_that_appear_between_two_scrapes_are_not_counted_from_zero():
    first, last = pair(firsts=100.0)
    assert batch_of(snapshot(0.0, steps=0.0, inter_token_latency=first.inter_token_latency), last, 8.0).decoding == 4.0


@pytest.mark.parametrize(
    ("gains", "tokens"),
    [
        pytest.param({"step_tokens": 51_200.0}, 512.0, id="a hundred steps"),
        pytest.param(
            {"step_tokens": 51_200.0, "spent": 80.0, "prefill": 40.0}, 1024.0, id="each counted twice: eight decoded, four a step"
        ),
        pytest.param({"step_tokens": 51_200.0, "outputs": None}, 512.0, id="no inter-token latency"),
        pytest.param({"step_tokens": 51_200.0, "outputs": 0.0, "spent": 80.0}, 512.0, id="nothing decoded"),
        pytest.param({"steps": None}, None, id="no steps"),
        pytest.param({"steps": 0.0, "step_tokens": 0.0}, None, id="no step was taken"),
        pytest.param({}, None, id="no tokens of steps"),
    ],
)
def test_tokens_of_a_mean_step(gains, tokens):
    first, last = pair(**gains)
    found = tokens_per_step(first, last, batch_of(first, last, 8.0))
    assert found == (None if tokens is None else pytest.approx(tokens))


def test_the_largest_of_what_is_known():
    assert largest([None, 2.0, 3.0]) == 3.0
    assert largest([None]) is None
