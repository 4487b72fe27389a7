"""Known clusters: what the experiments and the benchmark make of small cases with known answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from corsage.app.report import plots
from corsage.benchmarks import known_clusters as benchmark
from corsage.core.configuration.config import Config
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import FederatedData
from corsage.experiments import __main__ as command
from corsage.experiments.known_clusters import donors, figure2, grid
from corsage.experiments.known_clusters.async_l2gd import run_naive
from corsage.experiments.known_clusters.objective import penalty_gradient
from corsage.experiments.known_clusters.scores import Scores, constant, difference
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.settings import Parameters
from corsage.solvers.known_clusters.hierarchy import Hierarchy

# Donors.


def scored(loss: list[float], accuracy: list[float]) -> Scores:
    return Scores([str(i) for i in range(len(loss))], np.array(loss), np.array(accuracy), 0.0)


def test_statistics_of_the_tables() -> None:
    ours, other = (
        scored([0.1, 0.3, 1.2, 0.4], [1, 0.9, 0.5, 1]),
        scored([0, 0, 2, 4], [1, 1, 0.5, 0]),
    )
    assert other.statistics() == pytest.approx(
        {"mean": 1.5, "SD": np.sqrt(2.75), "25%": 0, "50%": 1, "75%": 2.5, "max": 4,
         "users above 1": 2}
    )  # fmt: skip
    assert other.accuracies(ours)["ours no worse"] == 0.75
    assert other.accuracies(other)["ours no worse"] == 1
    gap, error = difference(ours, other)
    gaps = np.array([0.1, 0.3, -0.8, -3.6])
    assert (gap, error) == pytest.approx((gaps.mean(), gaps.std() / 2))


def runs(**gaps: float) -> list[donors.Run]:
    """Two seeds, with every method's cross-entropy above that of the single model by its gap."""
    labels = (donors.NOTHING, donors.LOCAL, donors.SINGLE, donors.CLUSTER, donors.GRID, donors.OURS,
              donors.EXACT, donors.RUN, donors.SAFE, donors.FAST)  # fmt: skip
    usual = {donors.LOCAL: 0.2, donors.GRID: -0.004, donors.OURS: -0.0039, donors.EXACT: -0.002,
             donors.RUN: 0.003, donors.FAST: -0.0019}  # fmt: skip
    usual |= gaps
    search = grid.Search(
        (0.1, 1.0, 10.0), (0.1, 1.0, 10.0), np.array([[3, 3, 3], [3, 1, 2.0], [3, 3, 3]])
    )
    found = []
    for seed in range(2):
        base = np.random.default_rng(seed).random(40)
        scores = {
            label: Scores([], base + usual.get(label, 0.0), np.full(40, 0.9), 1.0)
            for label in labels
        }
        found.append(donors.Run(seed, scores, {"sum": search, "mean": search}, 0.06))
    return found


@pytest.mark.parametrize(
    ("gaps", "wrong"),
    [
        ({}, set()),
        ({donors.GRID: 0.001, donors.OURS: 0.001}, {"ours, grid - single", "ours, auto - single"}),
        ({donors.OURS: -0.003}, {"ours, auto - ours, grid"}),
        ({donors.RUN: -0.001}, {"means, grid: paper's run - single"}),
        ({donors.FAST: -0.003}, {"means, grid: al2sgd - means, grid"}),
    ],
    ids=["as claimed", "single ahead", "auto behind", "the run ahead", "not converged"],
)
def test_the_claims_on_donors(gaps: dict[str, float], wrong: set[str]) -> None:
    found = runs(**gaps)
    claims = donors.claims(found)
    assert {claim.name for claim in claims if not claim.inside} == wrong
    own = {claim.name: claim for claim in claims}["ours, grid - local"]
    expected = -0.204 if donors.GRID not in gaps else -0.199
    assert own.values == pytest.approx((expected, expected))
    assert len(donors.figures(found)) > 40
    assert "sums 1/1, 1/1" in donors.strengths(found) and "end" not in donors.strengths(found)


def test_figure_2_has_every_user() -> None:
    run = runs()[0]
    drawing = figure2.picture(donors.shown(run), 0, plots.LIGHT)
    bulk, tail = drawing.axes
    lines = [line for line in bulk.get_lines() if line.get_label() in donors.PAPER]
    assert [line.get_label() for line in lines] == list(donors.PAPER)
    x, y = lines[1].get_data()
    assert x == pytest.approx(np.sort(run.scores[donors.SINGLE].loss)) and y[-1] == 1
    assert max(tail.get_lines()[-1].get_ydata()) == 1


def federated(sizes: list[int], tests: int = 2) -> FederatedData:
    """Users with classes 0 and 1, two clusters."""
    rng, sizes = np.random.default_rng(0), np.array(sizes)
    ends = np.cumsum(sizes + tests)
    bounds = np.column_stack([ends - sizes - tests, ends - tests, ends])
    x, y = rng.normal(size=(ends[-1], 2)).astype(np.float32), rng.integers(0, 2, ends[-1])
    users = [f"u{i}" for i in range(len(sizes))]
    clusters = {user: "ab"[i % 2] for i, user in enumerate(users)}
    return FederatedData(users, clusters, 2, 0.0, 1.0, x, y, bounds)


def test_a_fifth_of_the_training_records_is_held_out() -> None:
    """Of each user, at least one and never all; no test record is among them."""
    data = federated([2, 5, 20, 3])
    split = grid.Split.of(data, 0)
    rows = np.concatenate([data.x[a:b] for a, b, _ in data.bounds])
    assert split.x == pytest.approx(rows)
    held = [part.sum() for part in np.split(split.held, np.cumsum(split.sizes)[:-1])]
    assert held == [1, 1, 4, 1]
    assert (grid.Split.of(data, 1).held != split.held).any()
    losses = split.losses(~split.held, "sum")
    assert losses.counts.tolist() == [1, 4, 16, 2]


def test_grid_search_picks_the_least_held_out_loss() -> None:
    """Each fit is a stationary point of (2.3), and its loss on the held-out records is right."""
    data = federated([12, 15, 20, 13])
    split = grid.Split.of(data, 0)
    found = grid.search(split, (0.5, 5.0), "mean")
    assert found.best == (
        found.gammas[found.loss.min(1).argmin()],
        found.lambdas[found.loss.min(0).argmin()],
    )
    assert found.at_end
    losses = split.losses(~split.held, "mean")
    theta = grid.fitted(losses, split.cluster, 0.5, 5.0, np.zeros((4, 3)))
    totals = 0.5 * np.bincount(split.cluster)
    tree = Hierarchy(split.cluster, np.full(4, 0.5), 5.0 / (5.0 + totals))
    slope = losses.gradient(torch.from_numpy(theta)).numpy() + penalty_gradient(theta, tree)
    assert np.abs(slope).max() < 1e-6
    owner = np.repeat(np.arange(4), split.sizes)[split.held]
    u = (split.x[split.held] * theta[owner, :2]).sum(1) + theta[owner, 2]
    cross = np.logaddexp(0, u) - split.y[split.held] * u
    users = np.bincount(owner, cross) / np.bincount(owner)
    assert found.loss[0, 1] == pytest.approx(users.mean(), abs=1e-6)


def test_no_model_is_the_rate_of_the_training_records() -> None:
    data = federated([5, 8, 4])
    scores, rate = constant(data)
    train = np.concatenate([data.y[a:b] for a, b, _ in data.bounds])
    assert rate == train.mean()
    first = data.y[data.bounds[0, 1] : data.bounds[0, 2]]
    assert scores.loss[0] == pytest.approx(-np.log(np.where(first, rate, 1 - rate)).mean())
    assert scores.accuracy[0] == (1 - first.mean() if rate < 0.5 else first.mean())


def test_tests_of_donors_are_not_balanced(tmp_path: Path) -> None:
    """A user's only response is in its test as often as chance has it: so is the rate of tests."""
    keys = {"dataset": "donors", "partition": "natural", "num-users": 0, "users-per-cluster": 120,
            "samples-per-user": 10, "cache-dir": str(tmp_path)}  # fmt: skip
    data = simulated(Config.parse(keys).data, 0, 0)
    train, test = (
        np.concatenate([data.y[rows[at] : rows[at + 1]] for rows in data.bounds]) for at in (0, 1)
    )
    spread = np.sqrt(train.mean() / len(test))
    assert abs(test.mean() - train.mean()) < 4 * spread
    single = [data.y[b:c].sum() for a, b, c in data.bounds if data.y[a:c].sum() == 1]
    share = np.sum([c - b for a, b, c in data.bounds]) / len(data.y)
    assert np.mean(single) == pytest.approx(share, abs=4 * np.sqrt(share / len(single)))


# The benchmark.


def test_the_bare_loop_is_algorithm_1() -> None:
    """The same numbers as the step-by-step algorithm on the same coins."""
    data = federated([3, 9, 4, 5, 7])
    theta, seconds = benchmark.bare(data, 60)
    cluster = np.array([0, 1, 0, 1, 0])
    tree = Hierarchy(cluster, np.ones(5), 1 / (1 + np.bincount(cluster)))

    def gradient(theta, users):
        rows = []
        for row, user in zip(theta, users, strict=True):
            a, b, _ = data.bounds[user]
            x = np.column_stack([data.x[a:b], np.ones(b - a)]).astype(float)
            rows.append((1 / (1 + np.exp(-x @ row)) - data.y[a:b]) @ x)
        return np.array(rows)

    coins = Coins(0, benchmark.P0, (0.0, 0.0), ("0", "1"))
    settings = Parameters(benchmark.ETA, benchmark.P0, np.zeros(2), np.ones(2))
    expected = run_naive(np.zeros((5, 3)), gradient, tree, settings, coins, 60)
    assert theta == pytest.approx(expected, abs=1e-5) and seconds >= 0


def test_cpu_seconds_are_added_up_over_processes() -> None:
    spent = benchmark.Spent(cpu={1: 2.0, 2: 0.5})
    assert spent.seconds == 2.5
    spent.take({os.getpid(), 2**22 + 1})
    assert spent.cpu[os.getpid()] > 0 and spent.total > 0


# The command.


def test_the_command_on_a_few_donors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All methods on the same few users, the tables, the JSON file and the picture."""
    words = ["known-clusters-donors", "--quick", "--out", str(tmp_path), "users-per-cluster=12",
             "samples-per-user=15", "mixed-likelihood=quasi",
             f"cache-dir={tmp_path}"]  # fmt: skip
    small = {"known_iterations": 40}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(donors, "COIN", donors.COIN | small)
        patch.setattr(donors, "TWO", donors.TWO | small)
        assert command.main(words) == 0
    assert "ours, auto - single" in capsys.readouterr().out
    written = json.loads((tmp_path / "known-clusters-donors.json").read_text())
    (result,) = written["results"]
    assert result["users"] == 60 and len(result["methods"]) == 10
    by_name = {row["name"]: row for row in written["figures"] if row["case"] == "difference"}
    methods = result["methods"]
    gap = by_name["ours, grid - single"]["measured"]
    assert gap == pytest.approx(methods["ours, grid"]["to_single"]["difference"])
    assert methods["single"]["to_single"]["difference"] == 0
    assert (tmp_path / "known-clusters-donors.png").read_bytes().startswith(b"\x89PNG")
