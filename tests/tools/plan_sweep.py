"""Print how ``plan`` stands to vLLM over every config class of transformers: equal, refused, upper bound, different, and the reasons.

Reads ``tests/data/oracle/classes.jsonl.gz``; run it with kvwatch's Python, from the repository.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path

from kvwatch.capacity.architecture import read_model
from kvwatch.capacity.cache import ServerSetup, kv_cache
from kvwatch.plan.sources import class_defaults

ROWS = Path(__file__).parents[1] / "data" / "oracle" / "classes.jsonl.gz"


def judged(row):
    """(equal | refused | upper bound | different | no truth, why)."""
    try:
        model = read_model(row["config"], class_defaults())
        cache = kv_cache(model, ServerSetup(version=(0, 32), batched_tokens=2048))
    except ValueError as reason:
        return ("refused though vLLM serves it" if "at" in row else "refused"), str(reason)
    if "at" not in row:
        return "no truth: this vLLM neither serves nor builds it", None
    blocks = cache.blocks(10 * 2**30)
    ratios = [cache.concurrency(blocks, int(length)) / vllm for length, (_, vllm) in row["at"].items() if vllm]
    if all(abs(ratio - 1) <= 0.01 for ratio in ratios):
        return "equal", None
    return ("upper bound", model.unknown[0]) if model.unknown and max(ratios) <= 1.01 else ("different", None)


def main():
    found, reasons = Counter(), Counter()
    with gzip.open(ROWS, "rt", encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            what, why = judged(row)
            found[what] += 1
            if why:
                reasons[f"{what}: {why}"] += 1
            if what == "different":
                sys.stdout.write(f"different: {row['model_type']} {row['form']}\n")
    for counter in (found, reasons):
        sys.stdout.writelines(f"{count:5} {text}\n" for text, count in counter.most_common())


if __name__ == "__main__":
    main()
