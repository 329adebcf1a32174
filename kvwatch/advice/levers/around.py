"""Levers around the engine: the host in front of it, what a request waits for, and what hides the numbers."""

from __future__ import annotations

import math
from typing import Final

from kvwatch.advice.inputs import AdviceInputs
from kvwatch.model import Cause, Change
from kvwatch.text import number, percent

_SPEND: Final = 0.7
"""Share of a core that leaves an API server process room."""
_STREAM_INTERVAL: Final = 4
"""Tokens a message. More: clients see the text in larger pieces, and little is left to save."""


def more_api_servers(inputs: AdviceInputs) -> Change | None:
    """The API server's one process is the limit (vLLM >= 0.9.1 can run several)."""
    cores = inputs.signals.process_cpu_ratio
    if cores is None or inputs.has_version("0.9.1") is False:
        return None
    return Change(
        lever="--api-server-count",
        current="1",
        proposed=str(max(2, math.ceil(cores / _SPEND))),
        reason=f"its process uses {cores:.2f} cores and one event loop has one: {cores:.2f} ÷ {_SPEND:g}",
        effect="tokenising, HTTP and streaming spread over several processes",
        caution=_needs(inputs, "0.9.1")
        + "the host needs the cores (look at the container's CPU limit); vLLM then no longer reports process_cpu_seconds_total",
    )


def coarser_stream(inputs: AdviceInputs) -> Change | None:
    """Each streamed token costs the API process a message (vLLM >= 0.11.1 can batch them)."""
    if inputs.signals.process_cpu_ratio is None or inputs.has_version("0.11.1") is False:
        return None
    return Change(
        lever="--stream-interval",
        current="1",
        proposed=str(_STREAM_INTERVAL),
        reason=f"one message for {_STREAM_INTERVAL} tokens is a quarter of the messages",
        effect="less work per token in the API process; the first token is still sent at once",
        caution=_needs(inputs, "0.11.1") + "clients see the text in steps",
    )


def look_at_the_host(inputs: AdviceInputs) -> Change | None:
    """The GPU idles while requests wait: something in front of it is the limit."""
    busy = inputs.signals.gpu_utilization
    if busy is None or inputs.signals.process_cpu_ratio is not None:
        return None
    return Change(
        lever="the host in front of the GPU",
        reason=f"the GPU is {percent(busy)} busy while requests wait: look at the CPU limit and throttling of the container, "
        "at tokenising and image preprocessing, and at the network",
        effect="the GPU no longer waits for work",
        caution="utilisation counts any kernel, also one that waits for memory",
    )


def chunked_prefill(inputs: AdviceInputs) -> Change | None:
    """Old vLLM only: V1 does it always."""
    if inputs.has_version("0.8") is not False:
        return None
    return Change(
        lever="--enable-chunked-prefill",
        current="off by default",
        proposed="on",
        reason=f"vLLM {inputs.known.vllm_version} computes a whole prompt before anyone else's next token",
        effect="prompts are computed in pieces beside the decoding",
        caution="vLLM 0.8 and later do it by themselves: upgrading brings it too",
    )


def what_they_wait_for(inputs: AdviceInputs) -> Change | None:
    """Deferred requests wait for remote KV, a LoRA slot or a grammar."""
    stages = "" if inputs.has_version("0.32") is False else "vllm:num_requests_kv_fetch_by_stage (remote KV, vLLM >= 0.32) and "
    newest = inputs.has_version("0.34") is True
    loads = ", and --max-num-inflight-kv-loads, which bounds how many load at once" if newest else ""
    return Change(
        lever="what deferred requests wait for",
        reason=f"look up {stages}the prefill peer's log, "
        f"vllm:lora_requests_info against --max-loras, and the CPU load of grammar compilation{loads}",
        effect="they are admitted; slots and KV blocks are not what is short",
        caution="more KV, more slots or more replicas of this engine do not help",
    )


def silent_peer(inputs: AdviceInputs) -> Change | None:
    """Nothing runs and all that waits is deferred: the engine is not hung, it has nothing to compute until its peer delivers."""
    deferred = inputs.signals.recent.deferred
    if deferred is None or not inputs.signals.waits_for_others:
        return None
    return Change(
        lever="the peer that should deliver",
        reason=f"all {number(deferred.last)} waiting requests are deferred and none runs: look whether the prefill server, the KV store or "
        "the source of LoRA adapters answers, and into its log",
        effect="their KV, adapters or grammars arrive, and they run",
        caution="a restart of this server throws away what waits here and does not bring the peer back",
    )


def restart(inputs: AdviceInputs) -> Change | None:
    """An engine that gives no token does not come back by itself."""
    if silent_peer(inputs) is not None:
        return None
    silent = inputs.signals.seconds_without_life or inputs.signals.seconds_without_progress
    since = f" for {number(silent)} s" if silent else ""
    return Change(
        lever="restart the server",
        reason=f"there is work and no token has come out{since}",
        effect="requests are served again",
        caution="first save its log and a stack dump of the EngineCore process (py-spy dump --pid): after the restart the reason is gone",
    )


_BLIND: Final = {
    Cause.UNREACHABLE: (
        "the target's address",
        None,
        None,
        "look up whether vLLM runs there and whether its port can be reached from here",
    ),
    Cause.STALE: ("the missing engine", None, None, "look up in the log why this data-parallel rank is no longer reported"),
    Cause.NO_VLLM_METRICS: (
        "the target's address",
        None,
        "http://HOST:8000/metrics",
        "what answers there is not vLLM's /metrics: look up the port vLLM serves, or the Ray node agent's under Ray Serve",
    ),
    Cause.STATS_DISABLED: ("--disable-log-stats", "set", "removed", "with it vLLM reports none of its own numbers"),
    Cause.ASLEEP: ("POST /wake_up", None, None, "the engine sleeps, its numbers stand still"),
    Cause.AMBIGUOUS: (
        "one target per process, with names that kvwatch knows",
        None,
        None,
        (
            "see the evidence: several servers under this address need a target each (dns+http:// for a headless Service), and a number "
            "that is missing may have another name since an upgrade of vLLM (kvwatch_signal_source_info)"
        ),
    ),
}


def let_kvwatch_see(cause: Cause) -> Change | None:
    """What hides the numbers, and how to show them; ``None`` where waiting is all there is to do."""
    if cause not in _BLIND:
        return None
    lever, current, proposed, reason = _BLIND[cause]
    return Change(
        lever=lever,
        current=current,
        proposed=proposed,
        reason=reason,
        effect="kvwatch can tell what holds the server back",
        caution="until then kvwatch claims nothing",
    )


def _needs(inputs: AdviceInputs, version: str) -> str:
    return f"needs vLLM >= {version}; " if inputs.has_version(version) is None else ""
