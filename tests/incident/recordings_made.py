"""Recordings made of numbers, and kvwatch run over them."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def body(seconds, *, engine="0", model="demo-8b", running=8.0, waiting=0.0, usage=0.4, preemptions=0.0):
    """The exposition of an engine that has been busy for so long and finishes one request a second."""
    labels = f'engine="{engine}",model_name="{model}"'
    return (
        f"vllm:num_requests_running{{{labels}}} {running}\n"
        f"vllm:num_requests_waiting{{{labels}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}\n"
        f"vllm:num_preemptions_total{{{labels}}} {preemptions}\n"
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {seconds}\n'
        f"vllm:generation_tokens_total{{{labels}}} {seconds * 300}\n"
        f"vllm:prompt_tokens_total{{{labels}}} {seconds * 200}\n"
        f'vllm:cache_config_info{{{labels},block_size="16",num_gpu_blocks="1001"}} 1.0\n'
    )


def storm_body(seconds, since):
    """The same engine, preempting three sequences a second since then."""
    return body(seconds, running=20.0, waiting=10.0, usage=0.99, preemptions=3.0 * max(0.0, seconds - since))


def write(path, *scrapes, target="http://demo:8000/metrics"):
    """Write a recording of (t, body) and (t, None, error); returns its path."""
    lines = [{"kvwatch_recording": 1, "target": target}]
    for t, text, *error in scrapes:
        lines.append({"t": t, "body": text} if text is not None else {"t": t, "error": error[0]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(*arguments):
    """What starts kvwatch."""
    return [sys.executable, "-m", "kvwatch", *map(str, arguments)]


def kvwatch(*arguments, cwd=None, **environment):
    """Run kvwatch to its end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, check=False, cwd=cwd, env={**os.environ, **environment}
    )
