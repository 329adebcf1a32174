"""``python -m kvwatch``."""

from __future__ import annotations

import sys

from kvwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
