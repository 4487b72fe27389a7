"""What every command says when it cannot go on."""

from __future__ import annotations

import sys


def complain(error: object, code: int) -> int:
    """One line to the error stream; returns the exit code."""
    print(f"corsage: {' '.join(str(error).split())}", file=sys.stderr)
    return code
