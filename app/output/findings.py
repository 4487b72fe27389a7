"""What algorithms have to say at their ends: small tables of text, on the terminal and the report.

A result may have `findings`, a list of `{"title": ..., "rows": [[label, text], ...]}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.console import Group
from rich.table import Table
from rich.text import Text

from corsage.app.output.summary import Result


def findings(results: Sequence[Result]) -> Iterator[tuple[str, list[list[str]]]]:
    """All titles, each with its strategy's name before it, and their rows."""
    for result in results:
        for found in result.get("findings", []):
            yield f"{result['strategy']}: {found['title']}", found["rows"]


def findings_tables(results: Sequence[Result]) -> list[Group]:
    """The findings for the terminal; text, not markup: it is printed as it is."""
    tables: list[Group] = []
    for title, rows in findings(results):
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        tables.append(Group(Text(f"\n{title}", style="bold"), table))
    return tables


def findings_section(results: Sequence[Result]) -> str:
    """The findings for the report; empty if there are none."""
    parts = []
    for title, rows in findings(results):
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        table = f'<div class="wide"><table><tbody>{body}</tbody></table></div>'
        parts.append(f'<section class="findings"><h3>{escape(title)}</h3>\n{table}</section>')
    return "\n".join(["<h2>Findings</h2>", *parts]) if parts else ""
