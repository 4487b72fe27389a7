"""The users' table as it stands on the page: whole for few users, the script fills it for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from corsage.app.report.chart import written

STANDING = 100
"""Users that are in the table without the script."""
LOW = ' class="low"'
FOLD = 30
"""Users up to which the table is open from the start."""


def user_table(found: Mapping[str, Any]) -> str:
    """The table, with what searches it, and words on who is in it."""
    columns = found["columns"]
    measures = list({c["measure"]: None for c in columns if c["measure"]})
    own = [c for c in columns if not c["measure"] or c["measure"] == measures[0]]
    head = "".join(f'<th scope="col">{escape(str(c["title"]))}</th>' for c in own)
    body = "\n".join(line(own, i) for i in range(min(STANDING, found["shown"])))
    state = " open" if found["users"] <= FOLD else ""
    names = ", ".join(measures) or "no measure"
    return (
        f"<details{state}><summary>All {found['users']:,} users: {escape(names)}</summary>\n"
        f'{words(found)}{tools(measures)}<div class="wide people"><table id="people"><thead><tr>'
        f"{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
        '<p class="more extra"><button type="button" id="more">more</button></p>'
        '<p class="soft"><span class="low">Coloured</span>: the worst tenth of each strategy.</p>'
        "</details>"
    )


def words(found: Mapping[str, Any]) -> str:
    """What is not in the table."""
    if found["shown"] < found["users"]:
        return (
            f'<p class="soft">Of {found["users"]:,} users this page has the {found["shown"]:,} '
            "who are the worst or the best off, or hurt most, under some strategy; "
            "summary.json has all of them.</p>\n"
        )
    if found["users"] > STANDING:
        return f'<noscript><p class="soft">The first {STANDING} of them.</p></noscript>\n'
    return ""


def tools(measures: Sequence[str]) -> str:
    """What searches and filters the table; nothing of it is there without the script."""
    choice = ""
    if len(measures) > 1:
        options = "".join(f"<option>{escape(name)}</option>" for name in measures)
        choice = f'<label>measure <select id="measure">{options}</select></label>'
    return (
        '<div class="find extra"><label>find <input id="find" type="search" '
        'placeholder="user, or fedrep &lt; 80"></label>'
        f'<label><input id="worst" type="checkbox"> worst tenth only</label>{choice}'
        '<span class="soft" id="said"></span></div>\n'
    )


def line(columns: Sequence[Mapping[str, Any]], i: int) -> str:
    """One user's line."""
    cells = "".join(
        f"<td{LOW if i in (c.get('low') or ()) else ''}>{escape(cell(c, i))}</td>" for c in columns
    )
    return f"<tr>{cells}</tr>"


def cell(column: Mapping[str, Any], i: int) -> str:
    """One value."""
    value, kind = column["values"][i], column["kind"]
    if value is None or kind in ("text", "count"):
        return "–" if value is None else str(value)  # noqa: RUF001 (a dash, as in print)
    return written(value, kind)
