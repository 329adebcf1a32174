"""How inputs are changed at random, and what every border is held to."""

from __future__ import annotations

import random
from typing import Final

PAGE: Final = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo-8b"} 3.0
vllm:num_requests_waiting{engine="0",model_name="demo-8b"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="demo-8b"} 0.97
vllm:num_preemptions_total{engine="0",model_name="demo-8b"} 40.0
vllm:generation_tokens_total{engine="0",model_name="demo-8b"} 4000.0
vllm:prompt_tokens_total{engine="0",model_name="demo-8b"} 9000.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="demo-8b"} 12.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0",model_name="demo-8b"} 4.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="demo-8b"} 9.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="demo-8b"} 31.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="160",kv_cache_size_tokens="2560"} 1.0
process_start_time_seconds 1.7e+09
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 17.0
"""
_PIECES: Final = [
    "NaN", "+Inf", "-1", "1e308", "-1e-308", "9" * 40, "1_000", "٣", "\0", "\x1b[2J", "\u2028", "{", "}", '"', "\\", "\n", "\r", "# EOF",
    "[", "]", "&a", "*a", "<<: *w", "!!bool foo", "!!int ''", "!!timestamp x", "!!python/object:x", "~", "null", "true", "0x_", "1:2:3",
    "? ", ": ", "- ", "@", "%", "\t", ",", "'", "|", ">", "dns+http://", "http://", "[::1", ":99999", "le=", "engine=", "vllm:", "�",
]  # fmt: skip


def mutated(text: str, noise: random.Random) -> str:
    """The text with some pieces taken out, doubled, moved or replaced."""
    for _ in range(noise.choice((1, 1, 2, 3, 8))):
        at, to = sorted((noise.randint(0, len(text)), noise.randint(0, len(text))))
        to = min(to, at + noise.choice((0, 1, 3, 10, 60)))
        middle = noise.choice(("", noise.choice(_PIECES), text[at:to] * 2, chr(noise.randint(0, 0x2FFF)), noise.choice(_PIECES) * 50))
        text = text[:at] + middle + text[to:]
    return text


def one_line(text: str) -> None:
    if "\n" in text or not text.isprintable():
        raise AssertionError(f"not one printable line: {text!r}")
