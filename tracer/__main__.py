"""`python -m tracer` and the command `tracer`."""

from __future__ import annotations

import sys

from tracer.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
