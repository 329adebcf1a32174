"""How many sequences of varied length fit at once. Tokens in, sequences out.

Where answers differ in length, sequences are at all stages of growth at any time, and what they hold together varies about its mean by what
each differs from it. Where answers are equally long, those that began together end together, and all are at their end at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

SPREAD: Final = 2.5
"""Standard deviations of what all sequences hold together that are left free. Lower: more run and more are preempted. On the simulator
lognormal lengths of sigma 0.3 to 1 then leave 0 to 2 % preempted, where 1.25 leaves 2 to 15 %."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Means over requests of a length, its square and its cube, in tokens to that power."""

    mean: float
    squares: float
    cubes: float

    @property
    def variance(self) -> float:
        """Mean square of what a length differs from the mean, in tokens squared."""
        return max(0.0, self.squares - self.mean**2)


def equally_long(length: float) -> Moments:
    """Of requests that are all of one *length*, in tokens."""
    return Moments(length, length**2, length**3)


@dataclass(frozen=True, slots=True)
class Held:
    """What one running sequence holds, in tokens: its mean over time and by how much that varies (standard deviation)."""

    mean: float
    deviation: float

    def most(self, pool: float) -> int:
        """The most sequences n for which n means and `SPREAD` deviations of their sum, which grows with the root of n, fit a *pool*."""
        slack = SPREAD * self.deviation
        root = (math.sqrt(slack**2 + 4 * self.mean * pool) - slack) / (2 * self.mean)
        return math.floor(root**2 + 1e-9)


def held_while_growing(prompt: float, prompt_variance: float, output: Moments, block: int) -> Held:
    """What a sequence holds at any moment of its run: its prompt, and of its output what is there by then.

    A long output is met more often than a short one, in proportion to its length, and at a moment that is anywhere in it: its part has the
    mean E[o²] / 2 E[o] and the mean square E[o³] / 3 E[o]. Half a block on average is taken and not filled.
    """
    grown, squares = output.squares / (2 * output.mean), output.cubes / (3 * output.mean)
    return Held(prompt + grown + block / 2, math.sqrt(prompt_variance + max(0.0, squares - grown**2)))
