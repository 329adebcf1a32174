"""The arithmetic against vLLM itself: real servers, published configurations, every config class of transformers."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from kvwatch.capacity.architecture import read_model
from kvwatch.capacity.cache import ServerSetup, kv_cache
from kvwatch.capacity.class_defaults import complete
from kvwatch.capacity.model import Latent
from kvwatch.capacity.model_length import longest
from kvwatch.capacity.startup_log import read_startup_log
from kvwatch.plan.sources import class_defaults, scrape_live
from kvwatch.plan.subject import Given, serving_of

DATA = Path(__file__).parents[1] / "data" / "oracle"
V032 = (0, 32)


def load(name):
    with gzip.open(DATA / name, "rt", encoding="utf-8") as stream:
        return json.load(stream)


ENCODER_DECODERS = {"whisper"}
SERVERS = [case for case in load("servers.json.gz") if case["config"]["model_type"] not in ENCODER_DECODERS]
PUBLISHED = load("published.json.gz")


def flag(flags, *names, default=None, of=int):
    return next((of(flags[i + 1]) for i, word in enumerate(flags) if word in names), default)


def server_of(case, model, *, latent_block, **rules):
    flags = case["flags"]
    latent = any(isinstance(cache, Latent) for cache in model.caches)
    caching = {"--enable-prefix-caching": True, "--no-enable-prefix-caching": False}
    return ServerSetup(
        version=V032,
        gpus=flag(flags, "-tp", "--tensor-parallel-size", default=case.get("tp", 1)),
        stages=flag(flags, "-pp", "--pipeline-parallel-size", default=case.get("pp", 1)),
        kv_dtype=flag(flags, "--kv-cache-dtype", default="auto", of=str),
        block_size=latent_block if latent else flag(flags, "--block-size"),
        batched_tokens=flag(flags, "--max-num-batched-tokens", default=2048),
        async_scheduling="--no-async-scheduling" not in flags,
        prefix_caching=next((on for word, on in caching.items() if word in flags), None),
        hybrid_manager="--disable-hybrid-kv-cache-manager" not in flags,
        **rules,
    )


@pytest.mark.parametrize("case", SERVERS, ids=[case["name"] for case in SERVERS])
def test_a_real_servers_tokens_follow_from_its_config_and_memory(case):
    model = read_model(case["config"], class_defaults())
    cache = kv_cache(model, server_of(case, model, device="cpu", latent_block=16))
    blocks = flag(case["flags"], "--num-gpu-blocks-override", default=cache.blocks(case["kv_cache_memory_bytes"]))
    assert cache.tokens(blocks, case["max_model_len"]) == case["tokens"]
    assert blocks is not None
    assert cache.concurrency(blocks, case["max_model_len"]) == pytest.approx(case["concurrency"], abs=0.0051)


def test_at_least_twelve_architectures_were_started():
    assert len({case["config"]["model_type"] for case in SERVERS}) >= 12


@pytest.mark.parametrize("case", SERVERS, ids=[case["name"] for case in SERVERS])
def test_a_real_servers_log_and_page_say_the_same_tokens(case):
    log = read_startup_log(case["log"])
    assert (log.kv_cache_tokens, log.max_model_len, log.max_concurrency) == (case["tokens"], case["max_model_len"], case["concurrency"])
    live = scrape_live("http://x/metrics", lambda _url: ("\n".join(case["page"]) + "\n").encode(), log.known)
    assert (live.pool.tokens, live.pool.max_model_len) == (case["tokens"], case["max_model_len"])


@pytest.mark.parametrize("case", SERVERS, ids=[case["name"] for case in SERVERS])
def test_a_config_beside_a_real_servers_log_finds_the_same_concurrency(case):
    log = read_startup_log(case["log"])
    serving = serving_of(case["config"], class_defaults(), Given(), log, None)
    cache = kv_cache(serving.model, serving.server)
    blocks = serving.blocks or cache.blocks(cast("int", serving.kv_memory))
    assert cache.concurrency(blocks, case["max_model_len"]) == pytest.approx(case["concurrency"], rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_counted_as_vllm_counts_them(name):
    case = PUBLISHED[name]
    model = read_model(case["config"], class_defaults())
    cache = kv_cache(model, server_of(case, model, latent_block=64))
    blocks = cache.blocks(case["kv_cache_memory_bytes"])
    assert (blocks, cache.tokens(blocks, case["max_model_len"])) == (case["blocks"], case["tokens"])


REFUSED_THOUGH_SERVED = {"clip", "whisper"}
"""vLLM gives a text tower and a cross attention a cache; planned here are decoders."""


def test_every_config_class_is_counted_as_vllm_counts_it_or_refused_or_an_upper_bound():
    found, different = Counter(), []
    with gzip.open(DATA / "classes.jsonl.gz", "rt", encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            found[what := sweep(row)] += 1
            if what == "different":
                different.append(f"{row['model_type']} {row['form']}")
    assert not different
    assert found["equal"] >= 200, found


def sweep(row):
    """equal, refused, upper bound, different; or unknown where this vLLM gives no number to compare with."""
    try:
        cache = kv_cache(read_model(row["config"], class_defaults()), ServerSetup(version=V032, batched_tokens=2048))
    except ValueError:
        return "refused" if "at" not in row or row["model_type"] in REFUSED_THOUGH_SERVED else "different"
    if "at" not in row:
        return "unknown"
    blocks = cache.blocks(10 * 2**30)
    mine = {length: cache.concurrency(blocks, int(length)) for length in row["at"]}
    if all(mine[length] == pytest.approx(vllm, rel=0.01, abs=0.001) for length, (_, vllm) in row["at"].items()):
        return "equal"
    model = read_model(row["config"], class_defaults())
    below = all(mine[length] <= vllm * 1.01 for length, (_, vllm) in row["at"].items())
    return "upper bound" if model.unknown and below else "different"


def test_every_config_class_has_the_length_vllm_derives():
    with gzip.open(DATA / "classes.jsonl.gz", "rt", encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            if row.get("length"):
                # vLLM takes 2048 where a config gives no limit; here that is not known.
                assert longest(complete(row["config"], class_defaults()), V032) in (row["length"], None), row["model_type"]
