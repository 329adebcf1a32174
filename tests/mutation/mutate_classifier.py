"""Mutants of the classifier: ``python tests/mutation/mutate_classifier.py [COUNT] [SEED] [TEXT ...]`` (300 and 1 when not given)."""

from __future__ import annotations

import sys

from mutants import Target, run

_SET_FIRST = "the first scrape sets it before anybody looks"

CLASSIFIER = Target(
    packages=("kvwatch/classifier",),
    tests=(
        "tests/classifier/test_batch.py",
        "tests/classifier/test_curve.py",
        "tests/classifier/test_hysteresis.py",
        "tests/classifier/test_lengths.py",
        "tests/classifier/test_overflow.py",
        "tests/classifier/test_preemption.py",
        "tests/classifier/test_pressure.py",
        "tests/classifier/test_processes.py",
        "tests/classifier/test_quantiles.py",
        "tests/classifier/test_quiet.py",
        "tests/classifier/test_sizes.py",
        "tests/classifier/test_traffic.py",
        "tests/classifier/test_windows.py",
        "tests/classifier/test_history.py",
        "tests/classifier/test_signals.py",
        "tests/classifier/test_verdict_rules.py",
        "tests/classifier/test_engine.py",
        "tests/classifier/test_kinds.py",
    ),
    bar=0.92,
    equivalent={
        "@dataclass(frozen=True, slots=True)": "nobody changes one or gives it a new attribute",
        "return found if len(found) > 1 else self._snapshots[-2:]": "of two or more the last two are the last two",
        "self._hung = False": _SET_FIRST,
        "self._config = EngineConfig()": _SET_FIRST,
        "self.seen_at = 0.0": _SET_FIRST,
        "self._strays = 0": _SET_FIRST,
        "self._progress_at = 0.0": _SET_FIRST,
        "self._most_held = 0.0": _SET_FIRST,
        "self._life_at = 0.0": _SET_FIRST,
        "self._prompt_under_way = False": _SET_FIRST,
    },
)

if __name__ == "__main__":
    sys.exit(run(CLASSIFIER, sys.argv[1:], 300))
