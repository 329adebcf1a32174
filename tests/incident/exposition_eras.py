"""Bodies of vLLM 0.32 turned into what other versions, front ends and distributions would have exposed of the same moment.

What each of them has and lacks is from vLLM's sources: names, labels, families that came later or were renamed, children that
exist only once they were used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

_LINE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_READ: Final = (
    "num_requests",
    "kv_cache_usage",
    "engine_sleep_state",
    "num_preemptions",
    "request_success",
    "generation_tokens",
    "prompt_tokens",
    "iteration_tokens",
    "prefix_cache",
    "estimated_flops",
    "time_to_first_token",
    "inter_token_latency",
    "e2e_request_latency",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_time",
    "cache_config_info",
)


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: str

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value}" if labels else f"{self.name} {self.value}"


Change = Callable[[Sample], Iterable[Sample]]


@dataclass(frozen=True)
class Era:
    """What becomes of each sample, one change after the other, and of the whole page."""

    changes: tuple[Change, ...]
    page: Callable[[str], str] = str
    many_engines: bool = True
    """Whether it has data parallelism."""
    counts_preemptions: bool = True
    """Without the counter nobody can tell a preemption, and nothing pages."""

    def expose(self, samples: Iterable[Sample]) -> bytes:
        for change in self.changes:
            samples = [made for sample in samples for made in change(sample)]
        return self.page("".join(f"{sample}\n" for sample in samples)).encode()


def parse(body: str) -> list[Sample]:
    """The samples that anybody looks at."""
    return [
        Sample(name, dict(_LABEL.findall(labels)), value)
        for name, labels, value in _LINE.findall(body)
        if not name.startswith("vllm:") or name.removeprefix("vllm:").startswith(_READ)
    ]


def without(*beginnings: str) -> Change:
    return lambda sample: () if sample.name.startswith(beginnings) else (sample,)


def renamed(old: str, new: str) -> Change:
    return lambda sample: (replace(sample, name=sample.name.replace(old, new, 1)),)


def without_labels(*names: str) -> Change:
    return lambda sample: (replace(sample, labels={name: value for name, value in sample.labels.items() if name not in names}),)


def without_created(sample: Sample) -> Iterator[Sample]:
    if not sample.name.endswith("_created"):
        yield sample


def born_on_first_use(sample: Sample) -> Iterator[Sample]:
    """A labelled child, or a counter that is never told to add nothing, is not there before it counts."""
    if not sample.name.endswith(("_total", "_bucket", "_count", "_sum")) or float(sample.value) != 0:
        yield sample


def success_born_on_first_use(sample: Sample) -> Iterator[Sample]:
    return born_on_first_use(sample) if "request_success" in sample.name else iter((sample,))


def pool_in_blocks(sample: Sample) -> Iterator[Sample]:
    """Before 0.24 the pool was not said in tokens."""
    yield from without_labels("kv_cache_size_tokens", "kv_cache_max_concurrency")(sample)


def blocks_unknown(sample: Sample) -> Iterator[Sample]:
    """V1 0.8: the labels are printed before the number of blocks is known."""
    yield replace(sample, labels={**sample.labels, "num_gpu_blocks": "None"}) if sample.name == "vllm:cache_config_info" else sample


def buckets_up_to(longest: float, *families: str) -> Change:
    """Fewer buckets than today."""

    def change(sample: Sample) -> Iterator[Sample]:
        edge = sample.labels.get("le")
        if edge in (None, "+Inf") or float(edge) <= longest or not sample.name.startswith(families):
            yield sample

    return change


def from_ray(sample: Sample) -> Iterator[Sample]:
    """Ray's node agent: another prefix, many labels, every counter twice; what is not vLLM's is not there."""
    if not sample.name.startswith("vllm:"):
        return
    labels = {"Component": "core_worker", "NodeAddress": "10.0.0.4", "ReplicaId": "r-1", "WorkerId": "aaaa", **sample.labels}
    made = Sample("ray_vllm_" + sample.name.removeprefix("vllm:"), labels, sample.value)
    yield made
    if made.name.endswith("_total"):
        yield replace(made, name=made.name.removesuffix("_total"))


def from_kserve(sample: Sample) -> Iterator[Sample]:
    yield replace(sample, name=f"kserve_{sample.name}")


def usage_per_process(sample: Sample) -> Iterator[Sample]:
    """0.9.2 to 0.11.0 with several API servers: a series per process, of which one is set."""
    if sample.name != "vllm:kv_cache_usage_perc":
        yield sample
        return
    for pid in ("41", "42", "43"):
        yield replace(sample, labels={**sample.labels, "pid": pid}, value=sample.value if pid == "42" else "0.0")


def steps_counted_by_each(servers: int) -> Change:
    """Several API servers each count the steps they see, with their own share of the tokens."""

    def change(sample: Sample) -> Iterator[Sample]:
        counts = sample.name in ("vllm:iteration_tokens_total_count", "vllm:iteration_tokens_total_bucket")
        yield replace(sample, value=str(float(sample.value) * servers)) if counts else sample

    return change


def as_openmetrics(page: str) -> str:
    return "# TYPE vllm:num_preemptions counter\n" + page + "# EOF\n"


_SERVER: Final = ("process_", "python_")
_NEWER_THAN_0_12: Final = (
    "vllm:num_requests_waiting_by_reason",
    "vllm:prompt_tokens_by_source",
    "vllm:prompt_tokens_cached",
    "vllm:estimated_flops",
    "vllm:engine_sleep_state",
)
_OLD_LATENCY: Final = renamed("inter_token_latency_seconds", "time_per_output_token_seconds")
_GPU_USAGE: Final = renamed("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_SHORT_BUCKETS: Final = (
    buckets_up_to(10.0, "vllm:time_to_first_token_seconds"),
    buckets_up_to(2.5, "vllm:time_per_output_token_seconds"),
    buckets_up_to(60.0, "vllm:e2e_request_latency_seconds"),
)

ERAS: Final = {
    "V0 0.6": Era(
        (
            without(*_SERVER, "http_", *_NEWER_THAN_0_12, "vllm:prefix_cache"),
            without_created,
            without_labels("engine"),
            pool_in_blocks,
            success_born_on_first_use,
            _OLD_LATENCY,
            *_SHORT_BUCKETS,
            _GPU_USAGE,
        ),
        many_engines=False,
    ),
    "V0 0.4, before it counted steps and lengths": Era(
        (
            without(*_SERVER, "http_", *_NEWER_THAN_0_12, "vllm:prefix_cache", "vllm:iteration_tokens", "vllm:request_prefill_time"),
            without_created,
            without_labels("engine"),
            pool_in_blocks,
            success_born_on_first_use,
            _OLD_LATENCY,
            *_SHORT_BUCKETS,
            _GPU_USAGE,
        ),
        many_engines=False,
    ),
    "V1 0.7.3, which counts no preemptions": Era(
        (
            without("http_", *_NEWER_THAN_0_12, "vllm:num_preemptions", "vllm:cache_config_info"),
            without_labels("engine"),
            renamed("vllm:prefix_cache", "vllm:gpu_prefix_cache"),
            _OLD_LATENCY,
            *_SHORT_BUCKETS,
            _GPU_USAGE,
        ),
        many_engines=False,
        counts_preemptions=False,
    ),
    "V1 0.8.2": Era(
        (
            without("http_", *_NEWER_THAN_0_12),
            without_labels("engine"),
            pool_in_blocks,
            blocks_unknown,
            renamed("vllm:prefix_cache", "vllm:gpu_prefix_cache"),
            _OLD_LATENCY,
            *_SHORT_BUCKETS,
            _GPU_USAGE,
        ),
        many_engines=False,
    ),
    "V1 0.10.0 with three API servers": Era(
        (
            without(*_SERVER, *_NEWER_THAN_0_12),
            without_created,
            pool_in_blocks,
            _OLD_LATENCY,
            usage_per_process,
            steps_counted_by_each(3),
        )
    ),
    "V1 0.13": Era((without(*_NEWER_THAN_0_12[:-1]), pool_in_blocks)),
    "V1 0.32 with two API servers": Era((without(*_SERVER), without_created, steps_counted_by_each(2))),
    "Rust front end": Era(
        (
            without(
                *_SERVER, "http_request_size", "http_response_size", "vllm:cache_config_info", "vllm:iteration_tokens", "vllm:engine_sleep"
            ),
            without_created,
        ),
        page=as_openmetrics,
    ),
    "Ray Serve": Era((without_created, born_on_first_use, from_ray)),
    "KServe": Era((from_kserve,)),
    "OpenMetrics": Era((), page=as_openmetrics),
}
