"""What every command says when it cannot go on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from corsage.core.errors import UNUSABLE, CorsageError


def complain(error: object, code: int) -> int:
    """One line to the error stream, of characters that can be read; returns the exit code."""
    line = " ".join(str(error).split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    print(f"corsage: {shown}", file=sys.stderr)
    return code


def exit_code(work: Callable[[], int | None]) -> int:
    """What a command leaves with: its own code, 2 for what cannot be used, 1 for what failed."""
    try:
        return work() or 0
    except UNUSABLE as error:
        return complain(error, 2)
    except CorsageError as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)
