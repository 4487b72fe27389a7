"""A reader of pages that minds what is not closed."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = ("meta", "link", "br", "img", "input", "hr", "line", "circle")


class Page(HTMLParser):
    """Every tag is closed in its turn; VOID ones need no end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """It is closed already."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def close(self) -> None:
        super().close()
        assert not self.open
