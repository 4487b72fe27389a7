"""Simulate personalised federated learning: `python run_simulation.py key=value ...`.

With no words at all: a tour of three comparisons, on data that show what each is for.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a script, from wherever
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from corsage.app.command import run_and_leave


def main() -> None:
    """Run the command line and leave with its exit code."""
    run_and_leave(sys.argv[1:] or ["tour"], __doc__ or "")


if __name__ == "__main__":
    main()
