"""How long each leg of a page took, and the same for its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from e2e_stack import CLOCK, Stack, get

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
        self._note("kvwatch", lambda: self.stack.kvwatch_fires(self.target, "PreemptionStorm"))
        self._note("scrape", lambda: bool(self.stack.query(f"kvwatch_alert_active{{{storm}}} == 1")))
        self._note("rule", self._rule_fires)
        for road in ROADS:
            for status in ("firing", "resolved"):
                arrived = self.stack.webhook.of(road, "pager", target=self.target, status=status)
                if arrived:
                    self.seen.setdefault(f"{status} by {road}", arrived[0][0])

    def _rule_fires(self) -> bool:
        """By the API of the rule manager: the series ALERTS is written only from Prometheus' second evaluation on."""
        wanted = ("KVWatchPreemptionStorm", self.target)
        alerts = get(f"{self.stack.prometheus_url}/api/v1/alerts")["data"]["alerts"]
        return any((one["labels"]["alertname"], one["labels"].get("target")) == wanted and one["state"] == "firing" for one in alerts)

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
