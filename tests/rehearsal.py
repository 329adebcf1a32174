"""The demo's stage without HTTP, threads or waiting."""

from __future__ import annotations

from kvwatch.assess import Judgement, judge_for
from kvwatch.config.settings import Settings
from kvwatch.demo.acts import SERVER, Act
from kvwatch.errors import ScrapeError
from kvwatch.model import Assessment, FailureReason, Scrape, ScrapeFailure, recommended_max_num_seqs
from kvwatch.poller.vllm import parse_scrape
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.simulation import Simulation

POLL = 5.0


class Rehearsal:
    """One server from the first act, which begins at *began*, to the last; `alerts` are the names of all that fired."""

    def __init__(self, seed: int, began: float = 0.0) -> None:
        self.simulation = Simulation(SERVER, seed=seed)
        self.judge = judge_for(Settings(), interval=POLL)
        self.began = self.now = began
        self.advised: int | None = None
        self.alerts: set[str] = set()
        self.failure: ScrapeFailure | None = None
        """Of the last poll."""

    def poll(self) -> Judgement:
        """What kvwatch says of the server one interval later."""
        self.now += POLL
        self.simulation.advance(self.now - self.began)
        judgement = self._judged()
        self.advised = recommended_max_num_seqs(judgement.assessments[0].advice) or self.advised
        self.alerts |= {alert.name for alert in (*judgement.assessments[0].alerts, *judgement.alerts)}
        return judgement

    def play(self, act: Act) -> list[Assessment]:
        """Everything kvwatch said of the engine during the act."""
        act.begin(self.simulation, self.advised)
        return [self.poll().assessments[0] for _ in range(round(act.seconds / POLL))]

    def _judged(self) -> Judgement:
        self.failure = None
        try:
            return self.judge.scraped(self._scraped())
        except ScrapeError as error:
            self.failure = ScrapeFailure(self.now, error.reason, error.detail)
            return self.judge.failed(self.failure)

    def _scraped(self) -> Scrape:
        if not self.simulation.serving:
            raise ScrapeError(FailureReason.CONNECT, "Connection refused")
        return parse_scrape(expose(self.simulation).encode(), self.now)
