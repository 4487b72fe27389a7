"""Distances of clusters' models: a tree of those that are nearest to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from corsage.app.output.summary import Result
from corsage.app.report import result_fields
from corsage.app.report.chart import Axis
from corsage.app.report.drawing import DRAWING_WIDTH
from corsage.app.results.rowfile import RowFile
from corsage.core.arrays import Floats
from corsage.core.errors import CheckpointError

MOST_TREE_CLUSTERS = 60
"""Clusters of which there is a tree."""
TREE_MEMBERS = 20
"""Users of a cluster whose models stand for all of them."""
MOST_COMPARED = 20_000_000
"""Parameters of all clusters together that are compared, at most."""
LEAF_HEIGHT = 24
"""Pixels of a leaf."""


@dataclass(frozen=True)
class Tree:
    """Clusters and how they join: (one, other, distance), nodes counted on from the leaves."""

    leaves: Sequence[str]
    joins: Sequence[tuple[int, int, float]]

    def places(self) -> dict[int, tuple[float, float]]:
        """Each node's distance, and its row from the top; a join lies between what it joins."""
        order = self.order()
        found = {leaf: (0.0, place + 0.5) for place, leaf in enumerate(order)}
        for number, (one, other, distance) in enumerate(self.joins, len(self.leaves)):
            found[number] = (distance, (found[one][1] + found[other][1]) / 2)
        return found

    def order(self) -> list[int]:
        """The leaves such that no lines cross."""
        under = {n: [n] for n in range(len(self.leaves))}
        for number, (one, other, _) in enumerate(self.joins, len(self.leaves)):
            under[number] = under[one] + under[other]
        return under[len(self.leaves) + len(self.joins) - 1]


def trees(folder: Path, results: Sequence[Result]) -> dict[str, Tree]:
    """A tree for each row that has clusters and whose models lie in the run folder."""
    found = {}
    for result in results:
        name, groups = str(result["strategy"]), result_fields.clusters(result)
        path = folder / name.partition("+")[0] / "models" / f"{name}.safetensors"
        if 1 < len(set(groups.values())) <= MOST_TREE_CLUSTERS and path.is_file():
            centres = centres_of(path, groups)
            if centres:
                found[name] = joined(centres)
    return found


def centres_of(path: Path, groups: Mapping[str, str]) -> dict[str, Floats]:
    """The mean model of each cluster's first users; nothing if they are too large to compare."""
    members: dict[str, list[str]] = {}
    for user, cluster in groups.items():
        members.setdefault(cluster, []).append(user)
    found: dict[str, Floats] = {}
    try:
        file = RowFile(path)
        for cluster, users in members.items():
            models = [vector(file, user) for user in users[:TREE_MEMBERS]]
            found[cluster] = np.mean(models, axis=0)
            if found[cluster].size * len(members) > MOST_COMPARED:
                return {}
    except (CheckpointError, KeyError, ValueError):  # a tree is no reason for want of a report
        return {}
    return found


def vector(file: RowFile, user: str) -> Floats:
    """A user's model as one vector."""
    parts = file.own(user)
    return np.concatenate([np.asarray(parts[n], dtype=np.float64).ravel() for n in sorted(parts)])


def joined(centres: Mapping[str, Floats]) -> Tree:
    """Those that are nearest join first; groups are apart as their members are on average."""
    from scipy.cluster.hierarchy import linkage  # seconds to import: only where there are clusters

    names = sorted(centres, key=result_fields.reading_order)
    steps = linkage(np.stack([centres[name] for name in names]), "average")
    return Tree(names, [(int(a), int(b), float(d)) for a, b, d, _ in steps])


def drawing(tree: Tree, names: Mapping[str, str]) -> str:
    """The tree, a row a cluster by its name, distances from the left to the right."""
    places, height = tree.places(), LEAF_HEIGHT * len(tree.leaves)
    far = max(distance for *_, distance in tree.joins) or 1.0
    axis = Axis("distance between the clusters' mean models", "number", 0.0, 1.04 * far)
    lines = []
    for number, (one, other, distance) in enumerate(tree.joins, len(tree.leaves)):
        x = DRAWING_WIDTH * axis.place(distance)
        for node in (one, other):
            begin, row = places[node]
            y, middle = LEAF_HEIGHT * row, LEAF_HEIGHT * places[number][1]
            lines.append(f"M{DRAWING_WIDTH * axis.place(begin):.1f} {y:.1f}H{x:.1f}V{middle:.1f}")
    rows = "".join(f"<span>{escape(names[tree.leaves[leaf]])}</span>" for leaf in tree.order())
    ticks = axis.below()
    return (
        f'<div class="tree"><div class="leaves">{rows}</div><div class="branches">'
        f'<svg viewBox="0 0 {DRAWING_WIDTH} {height}" preserveAspectRatio="none" '
        f'style="height:{height}px" role="img" aria-label="tree of the clusters">'
        f'<path d="{"".join(lines)}"/></svg>'
        f'<div class="scale">{ticks}</div></div></div>'
        f'<p class="axis">{escape(axis.label)}: those that join at the left are alike</p>'
    )
