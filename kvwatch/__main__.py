"""``python -m kvwatch``."""

from __future__ import annotations

import sys

from kvwatch.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
