"""What every command says when it cannot go on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from corsage.core.errors import UNUSABLE, CorsageError
from corsage.core.registry import not_installed


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
    except ModuleNotFoundError as error:  # a part of Corsage that was taken out
        if not_installed(error) is None:
            raise
        return complain(not_installed(error), 2)
    except CorsageError as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)


def in_a_line(error: BaseException) -> str:
    """An error in one line; what nobody foresaw with its type and place."""
    text = " ".join(str(error).split())
    if isinstance(error, CorsageError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"
