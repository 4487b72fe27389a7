"""Tables as plain text, for those who print them from Python."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

WIDE = 120
"""Columns of a printed table."""


def plain(*parts: RenderableType) -> str:
    """Tables one below the other, as the terminal shows them, without colours."""
    file = io.StringIO()
    console = Console(
        file=file, width=WIDE, force_jupyter=False, force_terminal=False, color_system=None
    )
    for part in parts:
        console.print(part, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
