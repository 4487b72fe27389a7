"""Keys and data of the methods for known clusters that are wrong, odd, or at an extreme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.errors import ConfigError, CorsageError, RoundFailed
from tests.support.federations import ELLIPSES, federate
from tests.support.grids import At, Watched
from tests.support.known_users import HIERARCHICAL, LOGISTIC, UNEVEN, Seen, far, users_of, written

TIES: dict[str, Any] = {"known_gamma": 1.5, "known_lambda": 0.8}
COINED = ["async-l2gd", "async-al2sgd"]
CLUSTERED = [*COINED, "mixed-model", "exact-cluster"]
EXACT = ["mixed-model", "single-cluster", "exact-cluster", "exact-global", "exact-local"]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def refusal(name: str, kind: type[CorsageError] = ConfigError, **keys: Any) -> str:
    """What a run is refused with: one line."""
    with pytest.raises(kind) as caught:
        federate(name, **{**HIERARCHICAL, **TIES, **keys})
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".")
    return text


# Users and their clusters.


@pytest.mark.parametrize("name", CLUSTERED)
def test_users_without_a_cluster_are_named_and_may_have_one_of_their_own(
    name: str, tmp_path: Path
) -> None:
    known = {user: "a" if int(user) < 5 else "b" for user in map(str, range(12)) if user != "7"}
    keys = {"cluster_map": written(tmp_path, known)}
    text = refusal(name, **keys)
    assert text.startswith("1 of 12 users have no known cluster (7)") and "known-missing" in text
    strategy, result, _ = federate(name, **{**HIERARCHICAL, **TIES, **keys}, known_missing="rest")
    assert strategy.state.clusters.known == ["a", "b", "rest"]
    assert len(result.json()[0]["per_user"]) == 12


def test_who_comes_later_without_a_cluster_is_left_out(tmp_path: Path) -> None:
    """At the start it would end the run; the others go on without it."""
    known = {user: "a" if int(user) < 5 else "b" for user in map(str, range(12)) if user != "0"}
    grid = Watched(12, absent=[0])  # users in the order of their clusters: 0 has none
    keys = {**HIERARCHICAL, **TIES, "cluster_map": written(tmp_path, known), "num_rounds": 4}
    _, result, notes = federate(
        "async-l2gd", grid=grid, callbacks=[At(3, grid.absent.clear)], **keys
    )
    assert notes.notes == ["user 0 is left out: no known cluster"]
    assert set(result.json()[0]["per_user"]) == {str(i) for i in range(1, 12)}


@pytest.mark.parametrize("name", [*COINED, "mixed-model"])
def test_a_cluster_that_only_new_users_have(name: str, seen: Seen) -> None:
    """They begin at the middle of the clusters that trained, and minimise f + gamma/2 |x - w|^2."""
    keys = {**HIERARCHICAL, **TIES, "new_cluster": "2", "num_rounds": 20}
    strategy, result, models = seen.run(name, **keys)
    assert set(result.json()[-1]["per_user"]) == {"8", "9", "10", "11"}
    assert strategy.state.clusters.known == ["0", "1"]
    users, middle = users_of(name, **HIERARCHICAL), strategy.state.model
    assert np.abs(middle).max() > 0.01
    for user in range(8, 12):
        a = users.x[user].T @ users.x[user] + 1.5 * np.eye(users.d)
        wanted = np.linalg.solve(a, users.x[user].T @ users.y[user] + 1.5 * middle)
        assert far(models[str(user)], wanted) < 1e-10


@pytest.mark.parametrize("gamma", ["number", "user"])
@pytest.mark.parametrize("name", COINED)
def test_new_users_of_a_known_cluster_adapt_from_its_centre(
    name: str, gamma: str, seen: Seen, tmp_path: Path
) -> None:
    """With a gamma of their own, if the file has one."""
    values = {str(i): 1 + i / 10 for i in range(12)}
    keys = {**HIERARCHICAL, **TIES, "new_users": 0.3, "num_rounds": 10}
    keys |= {"known_gamma": written(tmp_path, values)} if gamma == "user" else {}
    strategy, _, models = seen.run(name, **keys)
    users, new = users_of(name, **HIERARCHICAL), strategy.members.new_users
    assert 0 < len(new) < 6
    for user in new:
        j, own = users.cluster[int(user)], values[user] if gamma == "user" else 1.5
        mates = [i for i in np.flatnonzero(users.cluster == j) if str(i) not in new]
        rows = np.stack([models[str(i)] for i in mates])
        weights = [values[str(i)] for i in mates] if gamma == "user" else None
        centre = np.average(rows, axis=0, weights=weights)
        x, y = users.x[int(user)], users.y[int(user)]
        wanted = np.linalg.solve(x.T @ x + own * np.eye(users.d), x.T @ y + own * centre)
        assert far(models[user], wanted) < 1e-10
    assert len(strategy.state.model) == users.d


# Strengths.


@pytest.mark.parametrize("name", [*COINED, "mixed-model"])
@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        ("known_gamma", {"0": 1.0, "1": 2.0}, "neither cluster 2 nor its user 8"),
        ("known_gamma", {str(i): 1.0 for i in range(3, 11)}, "neither cluster 0 nor its user 0"),
        ("known_gamma", {"0": -1.0, "1": 2.0, "2": 1.0}, "-1 is not possible"),
        ("known_gamma", {"0": "much"}, "not a JSON file of numbers by name"),
        ("known_gamma", [1, 2], "not a JSON file of numbers by name"),
        ("known_lambda", {"0": 1.0, "2": 1.0}, "does not have cluster 1"),
    ],
)
def test_files_of_strengths_that_lack_something(
    name: str, key: str, content: Any, message: str, tmp_path: Path
) -> None:
    text = refusal(name, **{key: written(tmp_path, content)})
    assert message in text and "map.json" in text


@pytest.mark.parametrize("name", [*COINED, "mixed-model"])
@pytest.mark.parametrize("key", ["known_gamma", "known_lambda"])
@pytest.mark.parametrize(
    ("value", "message"),
    [("-2", "-2 is not possible"), ("nan", "nan is not possible"), ("a.json", "no such file")],
)
def test_strengths_that_are_none(name: str, key: str, value: str, message: str) -> None:
    assert message in refusal(name, **{key: value})


@pytest.mark.parametrize("name", COINED)
def test_names_of_users_that_are_names_of_clusters_too(name: str, tmp_path: Path) -> None:
    """Both are numbered here: a file of all users is one of users."""
    values = {str(i): 1 + i / 10 for i in range(12)}
    keys = {**HIERARCHICAL, "known_lambda": 1, "num_rounds": 2}
    by_user, _, _ = federate(name, **keys, known_gamma=written(tmp_path, values))
    found = by_user.schedule.hierarchy  # type: ignore[attr-defined]
    assert sorted(found.gamma) == sorted(values.values())
    text = written(tmp_path, {"0": 3, "1": 2, "2": 1})
    by_cluster, _, _ = federate(name, **keys, known_gamma=text)
    found = by_cluster.schedule.hierarchy  # type: ignore[attr-defined]
    assert found.gamma.tolist() == np.repeat([3.0, 2.0, 1.0], 4).tolist()


def test_strengths_of_a_network_are_a_tenth_of_its_curvature(tmp_path: Path) -> None:
    """lr stands for 1/(2 L). What is given stays."""
    clusters = {"a": [str(i) for i in range(6)], "b": [str(i) for i in range(6, 12)]}
    keys = {"dataset": "digits", "partition": "shards", "num_users": 12, "users_per_cluster": 20}
    keys |= {"model": "mlp", "loss": "auto", "cluster_map": written(tmp_path, clusters)}
    keys |= {"lr": 0.1, "num_rounds": 1, "known_iterations": 5}
    for gamma, wanted in (("auto", 0.5), ("3", 3.0)):
        strategy, _, _ = federate("async-l2gd", **keys, known_gamma=gamma, known_lambda="auto")
        found = strategy.schedule.hierarchy  # type: ignore[attr-defined]
        assert set(found.gamma.tolist()) == {wanted}
        assert strategy.state.strengths.lam == {"": 0.5}
    with pytest.raises(ConfigError, match="needs model=linear"):
        federate("mixed-model", **keys, known_gamma="auto", known_lambda="auto")


@pytest.mark.parametrize("name", ["async-al2sgd", *EXACT])
def test_methods_for_convex_losses_refuse_a_network(name: str) -> None:
    text = refusal(name, model="mlp")
    assert text.startswith(f"{name}: needs model=linear") and "async-l2gd takes any model" in text


def test_auto_needs_losses_that_are_likelihoods() -> None:
    keys = {"known_gamma": "auto", "known_lambda": "auto"}
    assert "loss-scale=sum ridge=0" in refusal("mixed-model", ridge=0.1, **keys)
    assert "loss-scale=sum ridge=0" in refusal("async-l2gd", loss_scale="mean", **keys)


# Coins and steps.


@pytest.mark.parametrize("name", COINED)
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"known_p0": 1.5}, r"known-p0=1\.5: must be from 0 to below 1"),
        ({"known_p0": -0.1}, r"known-p0=-0\.1: must be from 0"),
        ({"known_p0": "often"}, "known-p0=often: not a number, and not auto"),
        ({"known_p0": "nan"}, "known-p0=nan: must be finite"),
        ({"known_p": 1}, "known-p=1: must be from 0 to below 1"),
        ({"known_p": -1}, "known-p=-1"),
        ({"known_p": "x"}, "known-p=x: not a number"),
        ({"known_p": 0, "known_p0": 0.2, "known_tau": 0.5}, "p_j=0.*tau_j=1"),
        ({"known_tau": 2}, "tau_j must be between 0 and 1"),
        ({"known_tau": "t"}, "known-tau=t: not a number"),
        ({"known_p0": 0}, "p_0=0 leaves out the pull to the middle"),
        ({"known_eta": 0}, "eta=0 must be above 0"),
        ({"known_eta": "inf"}, "known-eta=inf: must be finite"),
        ({"known_iterations": -1}, "known-iterations=-1: must be at least 0"),
    ],
)
def test_coins_and_steps_that_cannot_be(name: str, keys: dict[str, Any], message: str) -> None:
    assert re.search(message, refusal(name, **keys))


def test_coins_by_cluster_for_all_of_them(tmp_path: Path) -> None:
    text = refusal("async-l2gd", known_p=written(tmp_path, {"0": 0.3, "2": 0.1}))
    assert "does not have cluster 1" in text
    keys = {**HIERARCHICAL, **TIES, "known_p": written(tmp_path, {"0": 0.3, "1": 0.2, "2": 0.1})}
    strategy, _, _ = federate("async-l2gd", **keys)
    assert strategy.schedule.coins.p == (0.3, 0.2, 0.1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COINED)
def test_without_a_pull_to_the_middle_clusters_are_on_their_own(
    name: str, seen: Seen, tmp_path: Path
) -> None:
    """lambda = 0: p_0 is 0, nothing ends a round but T, and each cluster goes as if it were alone.

    The step size is given: alone they have another one.
    """
    keys = {**HIERARCHICAL, "known_gamma": 1.5, "known_lambda": 0, "known_p": 0.3}
    keys |= {"known_eta": 0.003, "al2sgd_mu": 0.1, "al2sgd_rho": 0.05}
    assert "set known-iterations" in refusal(name, **keys)
    keys |= {"known_iterations": 300}
    strategy, _, together = seen.run(name, **keys)
    assert strategy.state.settings.p0 == 0
    if name == "async-l2gd":
        assert strategy.progress.round == 1
    for j in range(3):
        grid = Watched(3, absent={0, 1, 2} - {j})
        _, _, alone = seen.run(name, grid=grid, **keys)
        assert set(alone) == {str(i) for i in range(4 * j, 4 * j + 4)}
        for user, model in alone.items():
            assert far(together[user], model) < 1e-12


@pytest.mark.parametrize("nodes", [1, 12])
@pytest.mark.parametrize("name", COINED)
def test_a_step_that_is_too_long_is_noticed_and_named(name: str, nodes: int) -> None:
    keys = {**HIERARCHICAL, **TIES, "known_eta": 10, "num_rounds": 60, "evaluate_every": 100}
    with pytest.raises(RoundFailed) as caught:
        federate(name, nodes, **keys)
    text = str(caught.value)
    assert "diverged after iteration" in text and "known-eta=10 is too long a step" in text
    safe = float(re.findall(r"([0-9.e-]+) is the largest safe one", text)[0])
    strategy, _, notes = federate(name, nodes, **{**keys, "known_eta": safe, "num_rounds": 5})
    assert np.isfinite(strategy.state.model).all()
    assert not any("diverged" in note for note in notes.notes)


def test_a_step_above_the_safe_one_is_noted() -> None:
    strategy, _, notes = federate("async-l2gd", **HIERARCHICAL, **TIES)
    assert not notes.notes
    longer = 1.5 * strategy.state.settings.safe
    _, _, notes = federate("async-l2gd", **HIERARCHICAL, **TIES, known_eta=longer)
    assert len(notes.notes) == 1 and "is above" in notes.notes[0]


# Data that have no best model.


def separable(folder: Path, scale: float) -> dict[str, Any]:
    """Users u0, u1, ... in groups g0 to g2, whose classes are the sign of a feature."""
    x = np.linspace(-3, 3, 240).reshape(12, 20).T.reshape(-1, 1) * [scale, -1.0]
    owner = np.tile(np.arange(12), 20)
    np.savez(
        folder / "d.npz",
        x=x.astype(np.float32),
        label=(x[:, 0] > 0).astype(np.int64),
        user=np.array([f"u{i}" for i in owner]),
        group=np.array([f"g{i % 3}" for i in owner]),
    )
    data = {**ELLIPSES, "dataset": "npz", "data-file": str(folder / "d.npz")}
    data |= {"cluster-column": "group", "users-per-cluster": 20, "scale": "none"}
    return {key.replace("-", "_"): value for key, value in data.items()}


@pytest.mark.parametrize("name", [*COINED, *EXACT])
def test_classes_that_can_be_told_apart_do_no_harm(name: str, tmp_path: Path) -> None:
    """The logistic loss has no minimiser then; models stay finite, without a word of overflow."""
    keys = separable(tmp_path, 1.0 if name in COINED else 1000.0)
    with np.errstate(over="raise", invalid="raise"):
        strategy, result, _ = federate(name, nodes=3, **keys, num_rounds=30)
    assert not strategy.progress.dropped
    for array in ("model", "w", "centres", "y"):
        assert np.isfinite(getattr(strategy.state, array, 0)).all()
    assert result.json()[0]["accuracy"]["mean"] > 0.9
    assert np.isfinite(result.json()[0]["loss"]["max"])


@pytest.mark.parametrize("name", COINED)
def test_a_round_without_an_end_is_refused(name: str, tmp_path: Path) -> None:
    """Features in thousands: L is so large that p_0 on auto is next to nothing."""
    with pytest.raises(ConfigError, match=r"it would hold about .* iterations; set known-iterat"):
        federate(name, **separable(tmp_path, 1000.0))


def test_a_cluster_of_one_user_is_tied_to_the_middle_alone(seen: Seen, tmp_path: Path) -> None:
    """See also the references of the methods, which have such a cluster."""
    keys = {**LOGISTIC, **TIES, "cluster_map": written(tmp_path, UNEVEN), "num_rounds": 30}
    strategy, _, models = seen.run("mixed-model", **keys)
    users = users_of("mixed-model", **keys)
    theta, place = models["11"], strategy.state.clusters.known.index("d")
    w, middle = strategy.state.w[place], strategy.state.model
    slope = users.gradient(theta[None], np.array([11]))[0]
    assert np.abs(slope + 1.5 * (theta - w)).max() < 1e-8
    assert np.abs(1.5 * (w - theta) + 0.8 * (w - middle)).max() < 1e-8
