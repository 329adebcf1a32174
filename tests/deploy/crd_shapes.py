"""Reads custom resources as a JSON list on stdin; prints a line for each that does not have the published shape.

Run apart from the tests, with .cache/tools/crd-models on PYTHONPATH. The models drop fields they do not know, so a field that does
not come back out is one the resource does not have.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule, ServiceMonitor

MODELS = {model.__name__: model for model in (ScaledObject, PodMonitor, PrometheusRule, ServiceMonitor)}


def lost(given: Any, kept: Any, path: str) -> list[str]:
    """Paths in *given* that are not in *kept*."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [fault for key, value in given.items() for fault in lost(value, kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [fault for index, (one, other) in enumerate(zip(given, kept, strict=True)) for fault in lost(one, other, f"{path}[{index}]")]
    return [] if kept is not None or given is None else [f"{path} is no field of it"]


def main() -> int:
    """Exit code 1 where something was printed."""
    faults: list[str] = []
    for manifest in json.load(sys.stdin):
        try:
            kept = MODELS[manifest["kind"]].model_validate(manifest).model_dump(by_alias=True, exclude_unset=True, mode="json")
        except ValueError as error:
            faults.append(f"{manifest['kind']}: {error}")
        else:
            faults += lost(manifest, kept, manifest["kind"])
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
