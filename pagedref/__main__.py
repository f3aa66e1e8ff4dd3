"""Run the command line: ``python -m pagedref``."""

from __future__ import annotations

import sys

from pagedref.cli import main

if __name__ == "__main__":
    sys.exit(main())
