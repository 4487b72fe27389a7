"""Words of other parties, made fit for a line of a log, a file or a terminal."""

from __future__ import annotations

MOST = 300
"""Characters of a line from elsewhere."""


def escaped(text: str) -> str:
    """The text without anything that a terminal obeys: ESC, CR, LF, and marks that turn text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def line(text: object, most: int = MOST) -> str:
    """A text from another party as one line of at most so many characters."""
    words = str(text)
    found = escaped(words[: most + 1].strip())
    return found if len(found) <= most else f"{found[: most - 4]} ..."
