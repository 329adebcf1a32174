"""How long each leg of a page took, and the same for its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from e2e_stack import CLOCK, Stack

ROADS = ("prometheus", "push")


@dataclass
class Legs:
    """Monotonic times at which a storm's page passed each place; filled by `look`."""

    stack: Stack
    target: str
    seen: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        """Note what has been reached by now."""
        storm = f'alert="PreemptionStorm",target="{self.target}"'
        rule = f'ALERTS{{alertname="KVWatchPreemptionStorm",alertstate="firing",target="{self.target}"}}'
        self._note("kvwatch", lambda: self.stack.kvwatch_fires(self.target, "PreemptionStorm"))
        self._note("scrape", lambda: bool(self.stack.query(f"kvwatch_alert_active{{{storm}}} == 1")))
        self._note("rule", lambda: bool(self.stack.query(rule)))
        for road in ROADS:
            for status in ("firing", "resolved"):
                arrived = self.stack.webhook.of(road, "pager", target=self.target, status=status)
                if arrived:
                    self.seen.setdefault(f"{status} by {road}", arrived[0][0])

    def _note(self, place: str, reached: Callable[[], bool]) -> None:
        if place not in self.seen and reached():
            self.seen[place] = CLOCK.monotonic()

    def reached(self, *places: str) -> Callable[[], bool]:
        """A check for `wait_for`: looks, and says whether all these places have been reached."""

        def check() -> bool:
            self.look()
            return all(place in self.seen for place in places)

        return check

    def since(self, start: float, *places: str) -> dict[str, float]:
        """Seconds from *start* to each place that was reached."""
        return {place: round(self.seen[place] - start, 1) for place in (places or self.seen) if place in self.seen}
