"""How alerts speak: which engine, the numbers that decided, the first thing to do."""

from __future__ import annotations

from collections.abc import Sequence

from kvwatch.model import Change, Signals, Verdict


def sentence(verdict: Verdict, evidence: str, first: str) -> str:
    """The whole description. The target, the pod and the like are labels of the alert."""
    engine = "No engine known" if verdict.engine is None else f"Engine {verdict.engine.engine} of {verdict.engine.model_name}"
    return f"{engine} ({verdict.state}, {verdict.cause}): {evidence}. First: {first}."


def evidence_of(verdict: Verdict) -> str:
    """The numbers that decided the verdict."""
    return "; ".join(verdict.evidence)


def load_of(signals: Signals | None) -> str:
    """Running, waiting and cache, as far as known, as the tail of a clause."""
    if signals is None:
        return ""
    known = [
        f"{what} {value:{shape}}"
        for what, value, shape in (
            ("running", signals.running, ".0f"),
            ("waiting", signals.waiting, ".0f"),
            ("cache", signals.kv_usage, ".0%"),
        )
        if value is not None
    ]
    return f" ({', '.join(known)})" if known else ""


def advised(advice: Sequence[Change], otherwise: str) -> str:
    """The first piece of advice with its numbers, or why it has none; *otherwise* while there is no advice."""
    if not advice:
        return otherwise
    first = advice[0]
    if first.proposed is None:
        return f"{first.lever}{'' if first.current is None else f', {first.current} now'}: {first.reason}"
    return (
        f"{first.lever} {first.proposed}"
        if first.current is None
        else f"{first.lever} {first.current} \N{RIGHTWARDS ARROW} {first.proposed}"
    )
