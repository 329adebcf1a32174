"""Start a real vLLM for the servers of ``tests/data/oracle/servers.json.gz`` again, or for another model made small; write what it says.

Needs a Python with vLLM (the CPU build serves); run it with kvwatch's, from the repository. What is read stands in the log
(`KV cache size`, `Maximum concurrency`) and on the page (`cache_config_info`). ``--config`` keeps what decides the KV cache and makes
the rest small.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import requests

Config = dict[str, Any]
Case = dict[str, Any]
SERVERS: Final = Path(__file__).parents[1] / "data" / "oracle" / "servers.json.gz"
PATIENCE: Final = 300
"""Seconds a server may take to start: a slow disk takes a minute to import vLLM."""
SMALL: Final[Config] = {
    "vocab_size": 259,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
"""What weighs and keeps no KV; where a config has it, and none is null."""
TOKENIZER: Final = """
import sys
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
words = {f"w{i}": i for i in range(256)} | {"<s>": 256, "</s>": 257, "<pad>": 258}
special = {"unk_token": "w0", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(sys.argv[1])
"""
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_COLOR": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
OWN_ENVIRONMENT: Final = {"llama4_chunked__hybrid": {"VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "1"}}
KEPT_OF_LOG: Final = re.compile(
    r" version v?\d|non-default args|LLM engine|KV cache size|Maximum concurrency|kv lcm block|attention block size to|mamba page size"
    r"|Hybrid KV cache manager|Overriding num_gpu_blocks|padding layers|# \w+ blocks|Application startup complete"
)
KEPT_OF_PAGE: Final = re.compile(
    r"vllm:(num_requests_(running|waiting)|(kv|gpu)_cache_usage_perc|num_preemptions_total|generation_tokens_total|cache_config_info)\{"
)
POOL: Final = re.compile(r"KV cache size: ([\d,]+) tokens[\s\S]{0,300}?Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


def shrunk(config: Config, layers: int) -> Config:
    """The first *layers* layers of a model, thin where that changes nothing of what a layer keeps. A quantisation is left out."""
    text: Config = config.get("text_config") or config
    count = text.get("num_hidden_layers")
    small = {
        key: SMALL[key] if key in SMALL and value is not None else value for key, value in text.items() if key != "quantization_config"
    }
    if count is not None and count > layers:
        cut = {key: value[:layers] for key, value in small.items() if isinstance(value, list | str) and len(value) == count}
        small |= cut | {"num_hidden_layers": layers}
        if small.get("num_kv_shared_layers"):  # counted from the last layer
            small["num_kv_shared_layers"] = max(0, layers - (count - small["num_kv_shared_layers"]))
    return (
        small if text is config else {key: value for key, value in config.items() if key != "quantization_config"} | {"text_config": small}
    )


def kept(text: str, folder: Path, name: str, port: int) -> list[str]:
    """The lines of a log that say something of the pool, without what is this machine's."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(str(folder), f"/models/{name}").replace(f"'port': {port}", "'port': 8000")
    plain = re.sub(r"(tcp|http)://[\d.]+:\d+", r"\1://192.0.2.1:8000", plain)
    return [line for line in plain.splitlines() if KEPT_OF_LOG.search(line)]


def free_port() -> int:
    """One of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def page_of(server: subprocess.Popen[bytes], port: int) -> str | None:
    """The first page of metrics; ``None`` where the server ended, or did not answer in time."""
    for _ in range(PATIENCE):
        try:
            server.wait(1)
        except subprocess.TimeoutExpired:
            try:
                return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
            except requests.RequestException:
                continue
        return None
    return None


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server and all it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, how)
            server.wait(20)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def served(python: str, case: Case, work: Path) -> Case:
    """The case with what a real server says of it now; raises `RuntimeError` with the log's first error where none started."""
    folder, port, log = work / case["name"], free_port(), work / "vllm.log"
    shutil.copytree(work / "tokenizer", folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    address = ["--served-model-name", "demo-8b", "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | ENVIRONMENT | OWN_ENVIRONMENT.get(case["name"], {})
    with log.open("wb") as out:
        server = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *address, *case["flags"]],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            page = page_of(server, port)
        finally:
            stop(server)
    text = log.read_text(errors="replace")
    pools = POOL.findall(text)
    if page is None or not pools:
        lines = text.splitlines()
        raise RuntimeError(
            next((line for line in lines if re.search(r"(ERROR.*\] |\) |^)\w+(Error|Exception): ", line)), lines[-1] if lines else "no log")
        )
    tokens, length, concurrency = pools[-1]
    version = re.search(r"version v?(\d[\w.]*)", text)
    return case | {
        "vllm": version[1] if version else None,
        "tokens": int(tokens.replace(",", "")),
        "concurrency": float(concurrency),
        "max_model_len": int(length.replace(",", "")),
        "log": kept(text, folder, case["name"], port),
        "page": [line for line in page.splitlines() if KEPT_OF_PAGE.match(line)],
    }


def another(args: argparse.Namespace) -> Case:
    """A case of a model that is not there yet."""
    flags = ["--load-format", "dummy", "--enforce-eager", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(args.memory)]
    config = shrunk(json.loads(args.config.read_text()), args.layers)
    return {"name": args.names[0], "flags": [*flags, *args.flags.split()], "kv_cache_memory_bytes": args.memory, "config": config}


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="servers to start (default: all that are there)")
    parser.add_argument("--python", required=True, metavar="FILE", help="the Python that has vLLM")
    parser.add_argument("--to", type=Path, default=SERVERS, metavar="FILE", help="where what they say is written (default: the fixtures)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="another model's config.json; NAME is what it is to be called")
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="layers of it that are kept (default: %(default)s)")
    parser.add_argument("--memory", type=int, default=2**28, metavar="BYTES", help="for its KV cache (default: %(default)s)")
    parser.add_argument(
        "--flags", default="--max-model-len 4096 --max-num-batched-tokens 512 --block-size 32", help="(default: %(default)s)"
    )
    args = parser.parse_args(words)
    if args.config is not None and len(args.names) != 1:
        parser.error("--config needs one NAME")
    return args


def main(words: Sequence[str] | None = None) -> int:
    """Start them one after another; 1 where one did not start, which leaves its fixture as it was."""
    args = arguments(words)
    with gzip.open(SERVERS, "rt", encoding="utf-8") as stream:
        cases: dict[str, Case] = {case["name"]: case for case in json.load(stream)}
    wanted = [another(args)] if args.config is not None else [cases[name] for name in args.names or cases]
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([args.python, "-c", TOKENIZER, str(Path(work) / "tokenizer")], check=True)
        for case in wanted:
            try:
                cases[case["name"]] = now = served(args.python, case, Path(work))
            except RuntimeError as error:
                failed += 1
                sys.stdout.write(f"{case['name']}: did not start\n{error}\n")
                continue
            was = f" (was {case['tokens']}, {case['concurrency']})" if "tokens" in case else ""
            sys.stdout.write(f"{now['name']}: vLLM {now['vllm']}, {now['tokens']} tokens, {now['concurrency']}{was}\n")
    args.to.write_bytes(gzip.compress(json.dumps([cases[name] for name in sorted(cases)]).encode(), mtime=0))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
