"""Levers on how many tokens the KV pool holds, and on how many a request takes of it."""

from __future__ import annotations

from typing import Final

from kvwatch.advice.inputs import AdviceInputs
from kvwatch.model import Change
from kvwatch.text import number, percent

_UTILIZATION: Final = 0.95
"""The largest share of a card's memory that is advised: above it engines run out of memory after hours."""
_UTILIZATION_STEP: Final = 0.92
"""The share that is advised first to a server that is below it."""
_SIXTEEN_BIT: Final = frozenset({"auto", "float16", "half", "bfloat16", "float"})
_FAR_SHORTER: Final = 4.0
"""Times the mean request that the limit on its length must be to be named. Lower: limits that some requests need are named."""
_LONG_PROMPT: Final = 1000.0
"""Tokens from which a prompt that shares nothing is worth a look at its order. Lower: chat messages, which share little, are named."""
_LOW_HITS: Final = 0.1
"""Share of the prompt tokens found in the prefix cache (0..1) below which it finds next to nothing."""
_SMALLEST_WATERMARK: Final = 0.01
_LARGEST_WATERMARK: Final = 0.05
"""Share of all blocks: below the one the watermark is rounding, above the other it is idle cache (vLLM's own default is 0)."""


def shorter_limit(inputs: AdviceInputs) -> Change | None:
    """Requests are far shorter than the limit: no request needs so much."""
    limit, length = inputs.max_model_len, inputs.request_tokens
    if limit is None or length is None or limit < _FAR_SHORTER * length:
        return None
    return Change(
        lever="--max-model-len",
        current=str(limit),
        reason=f"a request takes {number(length)} tokens on average, {number(limit)} are allowed: "
        "look up your longest legitimate request in vllm:request_prompt_tokens and vllm:request_generation_tokens",
        effect="one very long request can no longer take the cache of many others",
        caution="the cache is paged and does not reserve it, so this alone does not make room; longer requests are refused",
    )


def limit_to_pool(inputs: AdviceInputs) -> Change | None:
    """A request longer than the whole pool is accepted and then blocks the queue until a restart (vLLM #39734)."""
    limit, pool = inputs.max_model_len, inputs.signals.capacity_tokens
    if limit is None or pool is None or limit <= pool:
        return None
    block = inputs.config.block_size or 1
    return Change(
        lever="--max-model-len",
        current=str(limit),
        proposed=str(max(block, (pool // block - 1) * block)),
        reason=f"requests up to {number(limit)} tokens are accepted, the pool holds {number(pool)}: "
        "a longer one can never run, and everything waits behind it",
        effect="such a request is refused at once instead of blocking the queue",
        caution="the request that blocks now needs a restart all the same",
    )


def more_memory(inputs: AdviceInputs) -> Change | None:
    """A larger share of the GPU for vLLM, all of it KV."""
    now = inputs.config.gpu_memory_utilization
    if now is None or now >= _UTILIZATION or not inputs.cache_is_used:
        return None
    goal = _UTILIZATION_STEP if now < _UTILIZATION_STEP else _UTILIZATION
    return Change(
        lever="--gpu-memory-utilization",
        current=f"{now:g}",
        proposed=f"{goal:g}",
        reason=f"{round(100 * (goal - now))} % more of the card, all of it for KV: {80 * (goal - now):.1f} GiB of an 80 GiB card",
        effect="a larger pool",
        caution="only with nothing else on the card, and without effect where --kv-cache-memory-bytes or --num-gpu-blocks-override is set; "
        "0.98 invites an out-of-memory crash after hours, restarts mean step down",
    )


def eight_bit_kv(inputs: AdviceInputs) -> Change | None:
    """8 bits an element instead of 16."""
    dtype, pool = inputs.config.cache_dtype, inputs.signals.capacity_tokens
    if dtype not in _SIXTEEN_BIT or not inputs.cache_is_used:
        return None
    size = f": {number(pool)} → about {number(2 * pool)} tokens" if pool else ""
    return Change(
        lever="--kv-cache-dtype",
        current=dtype,
        proposed="fp8",
        reason=f"half the bytes per token{size}",
        effect="about twice the sequences in the same memory",
        caution="gate it with a quality evaluation; the GPU has to support it, and under 'auto' a checkpoint may bring it already",
        gain=inputs.gain(None if inputs.room is None else inputs.room.sequences),
    )


def smaller_weights(inputs: AdviceInputs) -> Change | None:
    """4-bit weights leave the rest of their memory to KV."""
    room = inputs.room
    if room is None or inputs.wanted <= room.sequences:
        return None
    return Change(
        lever="4-bit weights (AWQ or GPTQ)",
        reason=f"{number(inputs.wanted)} sequences want to run, {number(room.sequences)} fit; a 7B model goes from 14 GB to about 5 GB: "
        "look up 'Model loading took' in the startup log for yours",
        effect="what the weights no longer take becomes KV",
        caution="evaluate quality before, code generation strictly; pointless when the weights are 4-bit already",
    )


def prefix_caching(inputs: AdviceInputs) -> Change | None:
    """Prompts that share their beginning share blocks, where the cache for it is on."""
    if inputs.config.enable_prefix_caching is not False:
        return None
    return Change(
        lever="--enable-prefix-caching",
        current="off",
        proposed="on",
        reason="it is switched off here, and a shared beginning is then stored and computed once per request",
        effect="what prompts share is stored and computed once",
        caution="worth it where prompts share more than about 60 %; hybrid models have it on by default from vLLM 0.26",
    )


def shared_beginnings(inputs: AdviceInputs) -> Change | None:
    """Prefix caching is on and finds nothing in long prompts: they differ early, or share less than a block."""
    hits, prompt = inputs.signals.prefix_hit_ratio, inputs.signals.next_prompt_tokens
    if inputs.config.enable_prefix_caching is not True or hits is None or prompt is None or hits >= _LOW_HITS or prompt < _LONG_PROMPT:
        return None
    block = f" (a block is {inputs.config.block_size} tokens)" if inputs.config.block_size else ""
    return Change(
        lever="order of the prompt",
        reason=f"prompts of {number(prompt)} tokens and {percent(hits)} of them found in the prefix cache{block}: "
        "look whether a time, an id or a user's text comes before what they share",
        effect="with the shared part first it is stored and computed once",
        caution="no help where prompts have nothing in common",
    )


def blocks_kept_free(inputs: AdviceInputs) -> Change | None:
    """Blocks that admission leaves to those that run and still grow (vLLM >= 0.24; before, or where nobody knows, no such flag)."""
    pool, output, running = inputs.signals.capacity_tokens, inputs.signals.output_tokens, inputs.signals.fast.running
    if inputs.has_version("0.24") is not True or inputs.is_full or not pool or output is None or running is None:
        return None
    growth = running.mean * output / 2
    share = min(_LARGEST_WATERMARK, max(_SMALLEST_WATERMARK, growth / pool))
    return Change(
        lever="--watermark",
        proposed=f"{share:.2f}",
        reason=f"{number(running.mean)} running grow by {number(growth)} tokens more, half an answer each, in a cache of {number(pool)}; "
        f"{_SMALLEST_WATERMARK:g} to {_LARGEST_WATERMARK:g} of its blocks is what helps",
        effect="who is let in leaves room to those that run: fewer preemptions without a fixed number of slots",
        caution="instead of a lower --max-num-seqs, not beside it; where answers are long it ends only a part of the preemptions",
    )
