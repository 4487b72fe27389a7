"""What every command says when it cannot go on."""

from __future__ import annotations

import sys


def complain(error: object, code: int) -> int:
    """One line to the error stream, of characters that can be read; returns the exit code."""
    line = " ".join(str(error).split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    print(f"corsage: {shown}", file=sys.stderr)
    return code
