"""In a notebook: one line that is written anew, and a log without colours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from flwr.supercore.logger import FLOWER_LOGGER, ConsoleHandler

Write = Callable[[str], None]


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return shell is not None and hasattr(shell, "kernel")


def line() -> Write | None:
    """In a notebook, what writes a line of output anew; else None."""
    if not in_notebook():
        return None
    show: Any = import_module("IPython.display").display
    handle = show({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)


@contextmanager
def in_float32() -> Iterator[None]:
    """Torch's default type is that of samples and models, whatever a notebook has set."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def calm_log(watched: bool) -> Iterator[None]:
    """Flower's log while strategies run from Python: warnings only, coloured if it is `watched`."""
    level = FLOWER_LOGGER.level
    handlers = [h for h in FLOWER_LOGGER.handlers if isinstance(h, ConsoleHandler)]
    coloured = [handler.colored for handler in handlers]
    FLOWER_LOGGER.setLevel(max(level, logging.WARNING))
    try:
        for handler in handlers:
            handler.colored = handler.colored and watched
        yield
    finally:
        FLOWER_LOGGER.setLevel(level)
        for handler, before in zip(handlers, coloured, strict=True):
            handler.colored = before
