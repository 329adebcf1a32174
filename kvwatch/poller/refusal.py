"""Why a page of metrics holds no engine of vLLM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kvwatch.model import FailureReason
from kvwatch.poller import names
from kvwatch.poller.exposition import family_names

_API_SERVER: Final = ("python_", "process_", "http_", "lmcache:")
"""What is left of vLLM's API server without stats: its process, its interpreter, its HTTP instrumentation, perhaps a cache plugin."""
_FINGERPRINTS: Final = frozenset(("python_info", "http_requests_total", "http_request_duration_highr_seconds"))
_OTHERS: Final = {
    "sglang:": "SGLang",
    "trtllm_": "TensorRT-LLM",
    "nv_": "Triton",
    "tgi_": "TGI",
    "node_": "node_exporter",
    "DCGM_": "the DCGM exporter",
    "kvwatch_": "kvwatch itself",
    "lmdeploy:": "LMDeploy",
    "llamacpp:": "llama.cpp",
    "dynamo_frontend_": "Dynamo's frontend",
    "smg_": "SGLang's gateway",
    "sgl_router_": "SGLang's gateway",
    "vllm_router_": "vLLM's router",
    "inference_pool_": "llm-d's endpoint picker",
    "inference_extension_": "llm-d's endpoint picker",
    "inference_objective_": "llm-d's endpoint picker",
    "inference_model_": "llm-d's endpoint picker",
    "llm_d_": "llm-d",
    "aibrix_": "AIBrix",
    "litellm_": "LiteLLM",
    "envoy_": "Envoy",
    "ray_": "Ray",
}
_ROUTERS: Final = ("vllm:healthy_pods_total", "vllm:current_qps", '{server="', ',server="')
"""Marks of a router's page (production-stack), which shows vLLM's queue gauges of the servers behind it."""
_VLLMS: Final = re.compile(r"(?:^|_)vllm[:_](?!omni)")
_SHOWN: Final = 3
"""Names of families that a sentence gives as examples."""


def refusal(text: str) -> tuple[FailureReason, str]:
    """The reason and one line for a person, for an exposition in which no engine was found."""
    if is_routers(text):
        return (
            FailureReason.NO_VLLM_METRICS,
            "a router's view of its vLLM servers, not an engine: point kvwatch at the servers (label server=...)",
        )
    found = family_names(text)
    ours = sorted(name for name in found if _is_vllms(name))
    if any(_is_core(name) for name in ours):
        return FailureReason.NO_VLLM_METRICS, "vLLM's families are declared, but no engine has reported a number yet"
    if ours:
        shown = "none that every engine shows (requests running and waiting, KV usage, generation tokens)"
        source = "a front end, a router, or a page somebody filters"
        return FailureReason.NO_VLLM_METRICS, f"vLLM's families are there ({_examples(ours)}), but {shown}: {source}"
    strangers = sorted(name for name in found if not name.startswith(_API_SERVER))
    if not strangers and not found.isdisjoint(_FINGERPRINTS):
        return FailureReason.STATS_DISABLED, "an API server without vLLM's families: was it started with --disable-log-stats?"
    other = next((product for prefix, product in _OTHERS.items() if any(name.startswith(prefix) for name in found)), None)
    if other is not None:
        return FailureReason.NO_VLLM_METRICS, f"these are the metrics of {other}, not of vLLM"
    return FailureReason.NO_VLLM_METRICS, f"no family of vLLM among {len(found)}: {_examples(strangers or sorted(found))}"


def is_routers(text: str) -> bool:
    """Whether a page without a model's name has the marks of a router."""
    return "vllm:" in text and any(mark in text for mark in _ROUTERS)


def _examples(families: Sequence[str]) -> str:
    return ", ".join(families[:_SHOWN]) + (", …" if len(families) > _SHOWN else "")


def _is_vllms(name: str) -> bool:
    """Whether vLLM itself, or a plugin inside it, would give a family that name, whatever was put before it (``ray_vllm_…``)."""
    return bool(_VLLMS.search(name)) and not name.startswith(tuple(_OTHERS.keys() - {"ray_"}))


def _is_core(name: str) -> bool:
    """Whether a sample or family name belongs to a family every vLLM engine has (OpenMetrics declares counters without ``_total``)."""
    wire = names.resolve(name) or names.resolve(f"{name}_total")
    return wire is not None and wire.sample in names.CORE
