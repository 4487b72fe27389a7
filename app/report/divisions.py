"""Clusters of users: a tree to open, and a map of who is where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from corsage.app.output.summary import Result
from corsage.app.report import result_fields
from corsage.app.report.style import COLOURS
from corsage.app.report.trees import Tree, drawing
from corsage.core.measures import measure_of

SQUARES = 2000
"""Users up to which each has a square on the map."""
LISTED_USERS = 200
"""Users of a cluster whose names are listed."""
KNOWN_CLUSTERS = "known from the data"
"""What stands for a method's name where clusters are given."""
BARS = 60
"""Clusters of a row that are shown; the rest is in a file."""
MOST_TABLE_CLUSTERS = 15
"""Clusters up to which two divisions are compared in a table."""

Groups = dict[str, list[str]]


def grouped(found: Mapping[str, str]) -> Groups:
    """The users of each cluster, in reading order, the largest clusters first."""
    groups: Groups = {}
    few = len(found) <= SQUARES
    for user in sorted(found, key=result_fields.reading_order) if few else found:
        groups.setdefault(found[user], []).append(user)
    return dict(
        sorted(groups.items(), key=lambda g: (-len(g[1]), result_fields.reading_order(g[0])))
    )


def same_division(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """True if two rows divide the same users alike, whatever they call the clusters."""
    if one == other:
        return True
    pairs = {(one[user], other.get(user)) for user in one}
    return set(one) == set(other) and len(pairs) == len(set(one.values())) == len(
        set(other.values())
    )


def alone(own: Mapping[str, str]) -> bool:
    """True if each of several users is a cluster."""
    return 1 < len(own) == len(set(own.values()))


def divisions(results: Sequence[Result]) -> list[tuple[list[str], dict[str, str]]]:
    """Each division of the users into clusters, with the rows that have it."""
    found: list[tuple[list[str], dict[str, str]]] = []
    if known := result_fields.known_clusters(results):
        found.append(([KNOWN_CLUSTERS], known))
    for result in results:
        own = result_fields.clusters(result)
        if not own:
            continue
        name = str(result["strategy"])
        same = next((names for names, other in found if same_division(own, other)), None)
        if same is None:
            found.append(([name], own))
        else:
            same.append(name)
    return found


def section(results: Sequence[Result], trees: Mapping[str, Tree]) -> str:
    """All divisions, each as a tree and a map, and how they agree; empty if there are none."""
    found = divisions(results)
    if not found:
        return ""
    parts = [division(names, own, found, results, trees) for names, own in found]
    compared = [
        crosstab(found[i], found[j])
        for i in range(len(found))
        for j in range(i + 1, len(found))
        if all(1 < len(set(found[n][1].values())) <= MOST_TABLE_CLUSTERS for n in (i, j))
    ]
    return "\n".join(["<h2>Clusters</h2>", *parts, *compared])


def division(
    names: Sequence[str],
    own: Mapping[str, str],
    others: Sequence[tuple[list[str], dict[str, str]]],
    results: Sequence[Result],
    trees: Mapping[str, Tree],
) -> str:
    """One division: a line that opens for each cluster, with a square for each of its users.

    Squares have the colour of the user's cluster in another division, if there is one.
    """
    groups = grouped(own)
    if alone(own):
        alone_there = {cluster: user for user, cluster in own.items()}
        tree = [drawing(trees[n], alone_there) for n in names if n in trees][:1]
        return (
            f'<section class="division"><h3>{escape(", ".join(names))}: no clusters</h3>\n'
            f'<p class="soft">Every user is by itself.</p>\n{"".join(tree)}</section>'
        )
    other = next(
        (o for o in others if o[1] is not own and 1 < len(set(o[1].values())) < len(o[1])), None
    )
    reference = other[1] if other else own
    places = {name: n % COLOURS for n, name in enumerate(grouped(reference))}
    scores = {
        n: result_fields.per_user(r, measure_of(r))
        for n, r in result_fields.by_name(results).items()
    }
    shown = list(groups.items())[:BARS]
    lines = [
        cluster(
            name,
            users,
            len(own),
            colours(users, reference, places),
            scores.get(names[-1], {}),
            results,
        )
        for name, users in shown
    ]
    if len(groups) > len(shown):
        lines.append(
            f"<p>and {len(groups) - len(shown)} smaller clusters: clusters.csv has all.</p>"
        )
    coloured = f" Colours are the clusters {of_whom(other[0])}." if other else ""
    rows = {name: f"{called(name)} ({len(users):,})" for name, users in groups.items()}
    lines += [drawing(trees[name], rows) for name in names if name in trees][:1]
    title = f"{', '.join(names)}: {len(groups)} cluster{'s' * (len(groups) != 1)}"
    dots = "A square a user." if len(own) <= SQUARES else "A bar is the share of all users."
    return (
        f'<section class="division"><h3>{escape(title)}</h3>\n<p class="soft">{dots}'
        f"{escape(coloured)} Open a cluster to see who is in it.</p>\n{chr(10).join(lines)}"
        "</section>"
    )


def called(name: str) -> str:
    """A cluster by its number or name; groups that were found are called that already."""
    return name if name.startswith("group ") else f"cluster {name}"


def of_whom(names: Sequence[str]) -> str:
    """The rows, or the data, that clusters are of."""
    return "of the data" if names[0] == KNOWN_CLUSTERS else f"of {', '.join(names)}"


def colours(
    users: Sequence[str], reference: Mapping[str, str], places: Mapping[str, int]
) -> list[int]:
    """The number of each user's colour."""
    return [places.get(reference.get(user, ""), 2) for user in users]


def cluster(
    name: str,
    users: Sequence[str],
    everyone: int,
    colour: Sequence[int],
    scores: Mapping[str, float],
    results: Sequence[Result],
) -> str:
    """One cluster: how many it has and how they do; opened, who they are."""
    measure = measure_of(results[0])
    own = [scores[user] for user in users if user in scores]
    mean = f", mean {measure.word} {measure.text(sum(own) / len(own))}" if own else ""
    count = f"{len(users)} user{'s' * (len(users) != 1)}"
    head = f"<b>{escape(called(name))}</b>: {count}{escape(mean)}"
    if everyone <= SQUARES:
        squares = "".join(
            f'<i class="c{n}" title="{escape(user, quote=True)}"></i>'
            for user, n in zip(users, colour, strict=True)
        )
        drawn = f'<div class="squares">{squares}</div>'
    else:
        share = 100 * len(users) / everyone
        drawn = f'<span class="bar c{colour[0]}" style="width:{share:.1f}%"></span>'
    listed = ", ".join(escape(user) for user in users[:LISTED_USERS])
    more = f" and {len(users) - LISTED_USERS} more" if len(users) > LISTED_USERS else ""
    usual = max(set(colour), key=colour.count)
    return (
        f'<details class="cluster c{usual}"><summary>{head}{drawn}</summary>'
        f"<p>{listed}{more}</p></details>"
    )


def crosstab(one: tuple[list[str], dict[str, str]], other: tuple[list[str], dict[str, str]]) -> str:
    """The number of users in each cluster of one division and each of the other."""
    (rows, own), (columns, others) = one, other
    heads, left = list(grouped(others)), list(grouped(own))
    counts: dict[tuple[str, str], int] = {}
    for user in own.keys() & others.keys():
        pair = (own[user], others[user])
        counts[pair] = counts.get(pair, 0) + 1
    head = "".join(f"<th>{escape(c)}</th>" for c in heads)
    body = "".join(
        f"<tr><td>{escape(r)}</td>"
        + "".join(f"<td>{counts.get((r, c), '') or '·'}</td>" for c in heads)
        + "</tr>"
        for r in left
    )
    title = f"Users by cluster: {', '.join(rows)} (down) and {', '.join(columns)} (across)"
    return (
        f'<section class="findings"><h3>{escape(title)}</h3><div class="wide"><table><thead><tr>'
        f"<th></th>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )
