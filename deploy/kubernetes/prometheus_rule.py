"""Wraps rules/kvwatch.rules.yaml as a PrometheusRule: `make generated`. A test fails while the result is not current.

kustomize cannot do it: it reads structure only from Kubernetes manifests, and Prometheus reads rules only without their wrapping.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
RULES: Final = _HERE.parent.parent / "rules" / "kvwatch.rules.yaml"
MANIFEST: Final = _HERE / "monitoring" / "prometheus-rule.yaml"
_WRAPPING: Final = """\
# Made from rules/kvwatch.rules.yaml by `make generated`; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kvwatch
spec:
"""


def wrapped(rules: str) -> str:
    """The manifest whose spec is *rules*, the text of a Prometheus rule file: line for line the same, comments too."""
    return _WRAPPING + indent(rules, "  ")


def main() -> int:
    """Write the manifest."""
    MANIFEST.write_text(wrapped(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {MANIFEST.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
