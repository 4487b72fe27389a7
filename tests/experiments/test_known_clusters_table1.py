"""Table 1 of known clusters: the single-coin run, and acceptance numbers at small cost."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.app.report import plots
from corsage.datasets.hierarchical import draw
from corsage.experiments.known_clusters.async_l2gd import run_naive
from corsage.experiments.known_clusters.methods import P0, STEP, Data, exact, one_coin
from corsage.experiments.known_clusters.settings import (
    EXACT,
    GRID,
    ONE_COIN,
    ORACLE,
    PAPER,
    REML,
    UNEQUAL,
)
from corsage.experiments.known_clusters.table1 import Panel, figures, panel, picture
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.settings import Parameters
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of


@pytest.mark.parametrize("m", [2, 30])
def test_one_coin_is_the_naive_run(m):
    k, n = 3, 12
    data = Data(5, draw(5, clusters=k, users=4, samples=m, features=6), 1.0, 1.0)
    tree = Hierarchy(data.cluster, np.ones(n), alpha_of(1.0, np.full(k, 4.0)))
    chosen = Parameters(STEP, P0, np.zeros(k), np.ones(k))
    coins = Coins(5, P0, (0.0,) * k, tuple(map(str, range(k))))

    def gradient(theta, users):
        return (data.a[users] @ theta[..., None])[..., 0] - data.b[users]

    start = np.zeros((n, 6))
    for iterations in (0, 1, 7, 2000):
        naive = run_naive(start, gradient, tree, chosen, coins, iterations)
        assert one_coin(data, iterations) == pytest.approx(naive, abs=1e-11)
    gap = np.abs(one_coin(data, 200_000) - exact(data)).max()
    assert 1e-6 < gap < (0.1 if m == 30 else 0.3)  # a fixed step ends near it only


def test_errors_are_those_of_the_reference():
    found = panel(PAPER, (1, 2), quick=True, left_out=("single cluster, CV", ONE_COIN, REML))
    assert found.samples == [10, 100]
    rows = {(row.case, row.name): row for row in figures(found)}
    for m in found.samples:
        for name in found.methods:
            row = rows[f"{PAPER.short}, m={m}", name]
            assert row.measured == pytest.approx(PAPER.known(name)[m], rel=0.03)
    most = rows[f"{PAPER.short}, m=10, largest", EXACT]
    assert most.reference == 8.676 and 5 < most.measured < 6.7 and most.inside is None
    assert rows[f"{PAPER.short}, m=100", "local"].high == pytest.approx(0.503)
    assert rows[f"{PAPER.short}, m=10", EXACT].low == pytest.approx(3.40 - 3 * 0.02)


def test_strengths_from_the_data_are_the_best_ones():
    found = panel(UNEQUAL, (1,), quick=True, left_out=(GRID,))
    rows = [row for row in figures(found) if row.low == 0 or row.name.startswith("REML over")]
    assert len(rows) == 4 and all(row.inside for row in rows)
    assert found.means(REML, 25).mean() < 0.85 * found.means(EXACT, 25).mean()
    assert (found.means(ORACLE, 10) < found.means(EXACT, 10)).all()


@pytest.mark.filterwarnings("error")
def test_picture_shows_every_method_and_the_reference():
    rng = np.random.default_rng(0)
    found = [
        Panel(
            each,
            {(name, m): rng.uniform(1, 6, (5, 9)) for name in each.methods for m in each.samples},
        )
        for each in (PAPER, UNEQUAL)
    ]
    drawing = picture(found, plots.DARK)
    plots.png(drawing)
    for axes, each in zip(drawing.axes, (PAPER, UNEQUAL), strict=True):
        lines = axes.get_lines()
        assert [line.get_label() for line in lines[::2]] == list(each.methods)
        for line, name in zip(lines[1::2], each.methods, strict=True):
            assert dict(zip(*line.get_data(), strict=True)) == each.known(name)
    names = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert set(names) == {*PAPER.methods, *UNEQUAL.methods}
