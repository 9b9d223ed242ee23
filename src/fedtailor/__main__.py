"""`python -m fedtailor` does what the command `fedtailor` does."""

from __future__ import annotations

import sys

from fedtailor.cli import main

if __name__ == "__main__":
    sys.exit(main())
