"""A target and the GPU exporter beside it."""

from __future__ import annotations

from peers import Peer, answer, is_silent, sends

from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.poller.target import TargetReader

PAGE = b'vllm:num_requests_running{engine="0",model_name="m"} 1\n'


class Clock:
    """Real enough for deadlines, moved by hand for the pause."""

    def __init__(self, real):
        self._real = real
        self.ahead = 0.0

    def monotonic(self):
        return self._real.monotonic() + self.ahead

    def unix(self):
        return self._real.unix()


def test_a_gpu_exporter_that_hangs_costs_one_poll_in_a_minute(peer):
    gpu = Peer(is_silent)
    try:
        clock = Clock(SystemClock())
        settings = Settings(targets=[peer(sends(answer(PAGE))).url], gpu={"url": gpu.url})
        read = TargetReader(settings, clock, settings.targets[0])
        assert read().gpu_utilization is None
        for _ in range(5):
            read()
        assert len(gpu.requests) == 1
        clock.ahead = 61.0
        gpu.stopped.set()
        read()
        assert len(gpu.requests) == 2
    finally:
        gpu.close()
