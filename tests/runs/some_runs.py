"""Runs as tests want them."""

from __future__ import annotations

from kvwatch.runs.run import Conditions, FiveLines, Percentiles, Run


def a_run(name="run", *, rate=100.0, ttft=1.0, itl=0.02, p99=10.0, preempted=0.0, **conditions):
    """A run of 300 requests with one value for every percentile."""
    known = {"requests": 300.0, "requests_per_second": 3.0, "concurrency": 32.0, "mean_prompt_tokens": 300.0, "mean_output_tokens": 200.0}
    return Run(
        name,
        100.0,
        FiveLines(
            generated_tokens_per_second=rate,
            total_tokens_per_second=None if rate is None else 2.5 * rate,
            preemption_ratio=preempted,
            time_to_first_token=Percentiles(ttft, ttft, ttft),
            inter_token_latency=Percentiles(itl, itl, itl),
            e2e_latency=Percentiles(p99, p99, p99),
        ),
        Conditions(**{**known, **conditions}),
    )
