"""The versions of Corsage and of the Flower that it was tested with."""

from __future__ import annotations

import sys

VERSION = "0.1.0"
"""The version of Corsage; pyproject.toml says the same."""

TESTED = ("1.41", "1.42")
"""Versions of Flower that the tests have passed with; the first is the oldest that is supported."""


def untested() -> str:
    """One line if Flower's version is none that was tested, else nothing."""
    from importlib import metadata  # slow to import

    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:  # a nightly build has another name
        found = "of an unknown version"
    if ".".join(found.split(".")[:2]) in TESTED:
        return ""
    return f"Flower {found} was not tested with Corsage {VERSION}; {' and '.join(TESTED)} were."


def warn_if_untested() -> None:
    """The same on the error stream: once a run."""
    if line := untested():
        print(f"corsage: {line}", file=sys.stderr)
