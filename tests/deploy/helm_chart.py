"""Lints or renders a chart with Helm's own library: a JSON request on stdin, its answer as JSON on stdout.

Run apart from the tests, with .cache/tools/helm on PYTHONPATH: a request brings a Go runtime into its process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """``{"error": …}`` where Helm refuses the values or a template; what it found or rendered otherwise."""
    chart, values = request["chart"], request["values"]
    try:
        if request["do"] == "lint":
            return {"messages": helm_python.lint(chart, values, strict=True)["messages"]}
        with helm_python.Chart.load(chart) as loaded:
            if request["do"] == "package":
                return {"package": loaded.save(request["destination"])}
            return {"files": loaded.render(values, name=request["name"], namespace="serving")}
    except helm_python.HelmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))
