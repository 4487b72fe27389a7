"""The mixed model of several classes: (2.3) with the multinomial loss, and strengths on auto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from corsage.app.fitting import fit
from corsage.clients.known_clusters import several_classes
from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ConfigError, ModelError
from corsage.core.messages.wire import Task
from corsage.core.registry import ALGORITHMS, source
from corsage.solvers.known_clusters.multinomial import NO_FOLD
from corsage.solvers.losses import padded
from corsage.solvers.losses.floor import leverages
from corsage.strategies.known_clusters import several_classes as strategy_module
from corsage.strategies.known_clusters.several_classes import ClassesSolution
from tests.support.federations import federate
from tests.support.grids import Watched

USERS, CLASSES, D = 6, 3, 3
CLUSTER = np.array([0, 0, 0, 1, 1, 1])
SIBLINGS = [name for name in ALGORITHMS if source(name) in ("mixed-model", "single-cluster")]
TIGHT = {"mixed_tolerance": 1e-18}


def drawn(seed: int = 3) -> tuple[Floats, Ints, Ints]:
    """Rows, classes and users; the users differ, and user 2 has never seen class 2."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(USERS), [5, 7, 9, 4, 6, 8])
    x, level = rng.standard_normal((len(user), D - 1)), rng.standard_normal((USERS, CLASSES))
    scores = x @ rng.standard_normal((D - 1, CLASSES)) + level[user]
    y = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    y[(user == 2) & (y == 2)] = 0
    return x, y, user


@pytest.fixture
def file(tmp_path: Path) -> dict[str, Any]:
    """The keys of a file of these."""
    x, y, user = drawn()
    np.savez(tmp_path / "rows.npz", x=x, y=y, user=user, cluster=CLUSTER[user])
    return {
        "dataset": "npz", "data_file": str(tmp_path / "rows.npz"), "user_column": "user",
        "label_column": "y", "cluster_column": "cluster", "scale": "none", "model": "linear",
        "loss": "cross-entropy", "test_fraction": 0.2, "num_rounds": 2,
        "known_gamma": "auto", "known_lambda": "auto", "users_per_cluster": 20,
    }  # fmt: skip


def dense(gamma: float, lam: float, ridge: float, mean: bool) -> Floats:
    """wbar (d, C) by one joint minimisation over all theta_i, w_j and wbar, as it is written."""
    x, y, user = drawn()
    z, hot = np.column_stack([x, np.ones(len(x))]), np.eye(CLASSES)[y]
    weight = 1 / np.bincount(user)[user] if mean else np.ones(len(user))

    def objective(v: Floats) -> tuple[float, Floats]:
        theta, w, wbar = np.split(v.reshape(-1, D, CLASSES), [USERS, USERS + 2])
        scores = np.einsum("md,mdc->mc", z, theta[user])
        log = scores - logsumexp(scores, 1, keepdims=True)
        own, away, slope = theta - w[CLUSTER], w - wbar, ridge * theta
        np.add.at(slope, user, weight[:, None, None] * z[:, :, None] * (np.exp(log) - hot)[:, None])
        down = lam * away
        np.add.at(down, CLUSTER, -gamma * own)
        squares = ridge * (theta**2).sum() + gamma * (own**2).sum() + lam * (away**2).sum()
        parts = slope + gamma * own, down, -lam * away.sum(0, keepdims=True)
        return squares / 2 - (weight * (log * hot).sum(1)).sum(), np.concatenate(parts).ravel()

    start = np.zeros((USERS + 3) * D * CLASSES)
    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    return np.asarray(found.x.reshape(-1, D, CLASSES)[-1])


@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_it_is_the_minimum_of_the_paper_s_objective(scale: str, file: dict[str, Any]) -> None:
    """Also where the nodes, and with them the sums, are two."""
    keys = {**file, "known_gamma": 0.4, "known_lambda": 0.7, "ridge": 0.05, "loss_scale": scale}
    strategy, _, _ = federate("mixed-model", nodes=2, **{**keys, **TIGHT, "test_fraction": 0})
    wanted = dense(0.4, 0.7, 0.05, scale == "mean")
    assert np.allclose(strategy.state.model, [*wanted[:-1].T.ravel(), *wanted[-1]], atol=1e-6)


def test_the_ends_are_one_model_one_a_cluster_and_one_a_user(file: dict[str, Any]) -> None:
    """With a ridge on each f_i: one model of rows that weigh the same has n times that ridge."""
    x, y, user = drawn()
    z = np.column_stack([x, np.ones(len(x))])

    def best(rows: Any, ridge: float) -> Floats:
        def objective(v: Floats) -> float:
            scores = z[rows] @ v.reshape(D, CLASSES)
            own = scores[np.arange(len(scores)), y[rows]]
            return float((logsumexp(scores, 1) - own).sum() + ridge / 2 * v @ v)

        found = minimize(objective, np.zeros(D * CLASSES), options={"gtol": 1e-7}).x
        model = found.reshape(D, CLASSES)
        return np.concatenate([model[:-1].T.ravel(), model[-1]])

    keys = {**file, "mixed_tolerance": 1e-14, "ridge": 0.5, "test_fraction": 0}
    together, apart = (federate(f"exact-{kind}", **keys)[0].state for kind in ("global", "cluster"))
    assert np.allclose(together.model, best(user < USERS, 0.5 * USERS), atol=1e-4)
    for cluster in (0, 1):
        assert np.allclose(apart.w[cluster], best(CLUSTER[user] == cluster, 1.5), atol=1e-4)
    alone = federate("exact-local", **keys)[1].summaries[0].loss.mean
    losses = []
    for one in range(USERS):
        model, rows = best(user == one, 0.5), user == one
        scores = z[rows] @ np.vstack([model[:-CLASSES].reshape(CLASSES, -1).T, model[-CLASSES:]])
        log = scores - logsumexp(scores, 1, keepdims=True)
        losses.append(-log[np.arange(len(log)), y[rows]].mean())
    assert alone == pytest.approx(np.mean(losses), abs=1e-5)


def told_apart(file: dict[str, Any], far: float, numbers: tuple[int, ...]) -> dict[str, Any]:
    """A file of 8 users of three classes, so numbered and so far from each other."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(3), 40)
    x = far * np.eye(3)[y] + rng.standard_normal((120, 3))
    np.savez(file["data_file"], x=x, y=np.array(numbers)[y], user=np.repeat(np.arange(8), 15))
    return {**file, "cluster_column": "", "known_gamma": 1, "known_lambda": 1, "num_rounds": 1}


@pytest.mark.parametrize(
    ("far", "ridge", "named"), [(20, 0, True), (20, 0.001, False), (1, 0, False)]
)
def test_a_problem_without_a_minimum_is_named(
    far: float, ridge: float, named: bool, file: dict[str, Any]
) -> None:
    """Twice the centres are better where classes lie apart, and nothing holds them."""
    keys = told_apart(file, far, (0, 1, 2))
    _, result, notes = federate("mixed-model", **keys, ridge=ridge)
    assert any("grow without end" in note for note in notes.notes) == named
    assert np.isfinite(result.summaries[0].loss.mean)


def test_a_descent_that_does_not_settle_is_named(
    file: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_module, "MOST_DESCENT_EXCHANGES", 100)
    monkeypatch.setattr(strategy_module, "CHECKED_EVERY", 2)
    monkeypatch.setattr(strategy_module, "MOST_ROUGH_EXCHANGES", 1)
    monkeypatch.setattr(ClassesSolution, "enough", -1.0)
    strategy, _, notes = federate("mixed-model", **file)
    assert any("100 exchanges; not settled" in note for note in notes.notes)
    assert strategy.job.progress.exchange <= 100 + 10


def test_classes_of_nobody_are_named(file: dict[str, Any]) -> None:
    """Without rho or ridge their scores would fall for ever."""
    keys = told_apart(file, 1, (0, 2, 4))
    with pytest.raises(ModelError, match="no user has a record of class 1, 3"):
        federate("mixed-model", **keys)
    notes = federate("mixed-model", **keys, ridge=0.1)[2]
    assert any("no user has a record of class 1, 3: models" in note for note in notes.notes)


@pytest.mark.parametrize("name", SIBLINGS)
def test_all_of_the_family_have_a_finite_model_on_auto(name: str, file: dict[str, Any]) -> None:
    """Without a ridge one model tells these users' rows apart, and has no end without rho."""
    strategy, result, _ = federate(name, **file)
    assert np.isfinite(result.summaries[0].loss.mean) and strategy.finished()
    assert strategy.state.change <= strategy.solution.enough


def test_new_users_of_very_different_sizes_have_models_of_some_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of like sizes are those of the samples that are used, not of all."""
    monkeypatch.setattr(padded, "SMALL", 1)
    rng, user = np.random.default_rng(0), np.repeat(np.arange(20), [6, 7, 8, 200] * 5)
    x = rng.standard_normal((len(user), 2))
    y = (x @ rng.standard_normal((2, 3)) + rng.gumbel(size=(len(user), 3))).argmax(1)
    np.savez(tmp_path / "rows.npz", x=x, y=y, user=user)
    own = {"dataset": "npz", "data_file": str(tmp_path / "rows.npz"), "user_column": "user"}
    keys = {**own, "label_column": "y", "model": "linear", "users_per_cluster": 20}
    new = {"new_users": 0.6, "adapt_samples": "4,0", "loss": "cross-entropy"}
    _, result, _ = federate("mixed-model", **keys, **new)
    row = result.json()[-1]
    assert [one["samples"] for one in row["new_users"]] == [4, 0]
    assert all(one["accuracy"]["mean"] > 0 for one in row["new_users"])


def test_users_with_classes_of_their_own_have_intercepts_of_their_own() -> None:
    """All slopes are the same: it must not give that up, and be better than one for all."""
    rng, users = np.random.default_rng(0), 20
    user = np.repeat(np.arange(users), 30)
    some = np.stack([rng.permutation(5)[:2] for _ in range(users)])
    y = some[user, rng.integers(2, size=len(user))]
    x = 2 * np.eye(5)[y] + rng.standard_normal((len(user), 5))
    keys = {"model": "linear", "loss": "cross-entropy", "progress": False, "num_rounds": 1}
    loss = {
        name: fit(x=x, y=y, user=user, strategy=name, test_fraction=0.5, **keys)[name].loss.mean
        for name in ("mixed-model", "exact-global", "exact-local")
    }
    assert loss["mixed-model"] < min(0.6 * loss["exact-global"], loss["exact-local"])


@pytest.mark.parametrize("strengths", [{"known_gamma": 0.5, "known_lambda": 0.5}, {}])
@pytest.mark.parametrize("gone", ["5", "345"])
def test_who_falls_silent_is_left_out_and_a_floor_holds(
    gone: str, strengths: dict[str, Any], file: dict[str, Any]
) -> None:
    """The sums of the others are of a problem without it, be it a user or a whole cluster."""

    def fails(number: int, task: Task) -> bool:
        own = {*task.users, *(user for some in task.members.values() for user in some)}
        return number > 3 and bool(own & {*gone})

    keys = {**file, **strengths, "ridge": 0.1, "min_share": 3, "num_rounds": 1}
    grid = Watched(USERS, fails)
    strategy, result, notes = federate("mixed-model", grid=grid, **keys)
    assert np.isfinite(result.summaries[0].loss.mean) and not strategy.finished()
    assert any("min-share" in note for note in notes.notes)


def test_no_row_stands_out_in_what_is_sent_nor_in_differences(
    file: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums without a fold less those of all rows are of the fold."""
    highest, made = list[float](), several_classes.blocks

    def looked(client: Any, told: bool, fold: int = NO_FOLD) -> Any:
        found = made(client, told, fold)
        for block in found if told else ():
            for weight in (block.weight, block.held):
                for z, own in zip(block.z.numpy(), weight.numpy(), strict=True):
                    highest.append(leverages(z[own > 0]).max(initial=0))
        return found

    monkeypatch.setattr(several_classes, "blocks", looked)
    federate("mixed-model", **file, min_share=2)
    assert len(highest) > 10 and max(highest) <= 1 / 2 + 1e-6


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"mixed_grouping": "found"}, "convex-clustering finds clusters"),
        ({"mixed_variances": "full"}, "for numbers or two classes"),
        ({"mixed_likelihood": "laplace"}, "for numbers or two classes"),
        ({"mixed_keep_sums": True}, "no sums to keep"),
        ({"offset_column": "x1"}, "for loss=logistic"),
    ],
)
def test_what_classes_have_not_is_refused(
    keys: dict[str, Any], match: str, file: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=match):
        federate("mixed-model", **{**file, **keys})
