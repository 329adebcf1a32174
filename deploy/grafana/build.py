"""The two dashboards. Run it to write them as JSON beside this file: `make generated`. A test fails while they are not current."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import engine
import fleet
from panels import Json

DASHBOARDS: Final = {"kvwatch-fleet.json": fleet.build, "kvwatch-engine.json": engine.build}


def render(dashboard: Json) -> str:
    """The file's text: stable, and small to compare."""
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Write each dashboard into the folder of this file."""
    for name, build in DASHBOARDS.items():
        path = Path(__file__).with_name(name)
        path.write_text(render(build()), encoding="utf-8")
        sys.stdout.write(f"wrote {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
