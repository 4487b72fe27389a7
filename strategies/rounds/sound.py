"""What the server computes out of replies may fail: then a round does, and the run is whole."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging import DEBUG
from pathlib import Path

from flwr.supercore import log

from corsage.core.errors import RoundFailed
from corsage.core.text import line

NUMERIC = (ArithmeticError, ValueError, RuntimeError)
"""What mathematics raises on numbers that it cannot work with; NumPy's and torch's are among it."""


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Numbers that cannot be worked with make `what` fail, in one line."""
    try:
        yield
    except NUMERIC as error:
        log(DEBUG, "%s failed:\n%s", what, traceback.format_exc())
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        raise RoundFailed(
            f"{what} cannot be computed from what users sent, nothing of it is kept: "
            f"{type(error).__name__}: {line(error)} ({where})"
        ) from error
