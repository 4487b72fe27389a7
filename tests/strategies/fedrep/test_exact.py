"""FedRep with exact heads: closed forms against plain least squares, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import corsage
from corsage.benchmarks.attack import client_of, lying
from corsage.core.errors import ConfigError, ModelError
from corsage.core.finite_pieces import ExactSum
from corsage.core.messages.replies import Replies
from corsage.core.robust import outlying
from corsage.networks.batches import Examples
from corsage.networks.exact import exact_heads
from corsage.networks.exact.projection import components, probes, sketched, spread
from corsage.networks.user_scores import all_features
from corsage.solvers.known_clusters.variances.shared_rows import Rows, fit, possible, without
from corsage.strategies.fedrep.exact_sums import ONE_HOT
from corsage.strategies.fedrep.fedrep_exact import FedRepExact
from corsage.strategies.fedrep.heads_at_end import differences
from corsage.strategies.rounds.means.most import RECORDS_DIFFER, means_of_most
from tests.support.federations import CLUSTER_MAP, federate

KEYS: dict[str, Any] = {"fedrep_exact_body_rounds": 0, "num_rounds": 1, "evaluate_every": 1}


def run(**more: Any) -> tuple[FedRepExact, Any, Any]:
    strategy, result, notes = federate("fedrep-exact", **{**KEYS, **more})
    assert isinstance(strategy, FedRepExact)
    return strategy, result, notes


def test_heads_are_ridge_regressions_around_the_centre() -> None:
    """Whichever system is smaller: users with more rows than features, and with fewer."""
    rng = np.random.default_rng(0)
    for rows in (30, 4):
        z, y = (
            torch.from_numpy(rng.normal(size=(rows, 7))),
            torch.from_numpy(rng.normal(size=(rows, 3))),
        )
        w = torch.from_numpy(rng.normal(size=(7, 3)))
        stacked = torch.cat([z, 0.8**0.5 * torch.eye(7, dtype=z.dtype)])
        targets = torch.cat([y, 0.8**0.5 * w])
        wanted = torch.linalg.lstsq(stacked, targets).solution
        assert torch.allclose(exact_heads.one(z, y, w, 0.8), wanted, atol=1e-10)
        for left in range(rows):
            rest = [i for i in range(rows) if i != left]
            without = z[left] @ exact_heads.one(z[rest], y[rest], w, 0.8)
            assert torch.allclose(exact_heads.left_out(z, y, w, 0.8)[left], without, atol=1e-9)


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_run_is_what_a_plain_loop_comes_to(rounds: int) -> None:
    """From the body that the server has: features, sums, variances, heads, right answers."""
    moved = {"fedrep_exact_body_rounds": rounds, "num_rounds": 1 + rounds, "lr": 0.05}
    strategy, result, _ = run(nodes=3, **moved)
    state, network = strategy.state, strategy.job.network
    from corsage.datasets.dealing.federated import simulated

    data = simulated(strategy.config.data, 12, strategy.config.run.seed)
    module = network.module.eval()
    network.set(network.body, state.body)

    def features(x: Any) -> torch.Tensor:
        raw = torch.as_tensor((np.asarray(x, np.float32) - data.shift) * data.scale)
        with torch.no_grad():
            z = network.features(raw).flatten(1).double()
        return torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)

    users = strategy.members.users
    z = [features(data[user].x_train) for user in users]
    y = [F.one_hot(torch.as_tensor(data[u].y_train).long(), 10).double() for u in users]
    rows = Rows(
        np.stack([(one.T @ one).numpy() for one in z]),
        np.stack([(one.T @ out).numpy() for one, out in zip(z, y, strict=True)]),
        np.array([float(len(out)) for out in y]),
        np.array([float(len(out)) for out in y]),
    )
    found = fit(rows, np.zeros(12, int), 1)
    assert found.rho == pytest.approx(state.rho, rel=1e-3)
    for user, one, out in zip(users, z, y, strict=True):
        ridge = one.T @ one + torch.eye(one.shape[1], dtype=one.dtype) / state.rho
        theta = torch.linalg.solve(ridge, one.T @ out + torch.from_numpy(found.wbar) / state.rho)
        said = (features(data[user].x_test) @ theta).argmax(1).numpy()
        right = float(np.mean(said == data[user].y_test))
        assert result.json()[0]["per_user"][user] == pytest.approx(right)
    assert module is network.module


def test_scores_are_calibrated() -> None:
    """The heat makes the loss smaller than that of scores which are about 0 and 1."""
    strategy, result, _ = run()
    assert strategy.state.heat > 1
    assert result.json()[0]["loss"]["mean"] < 1.0 < -np.log(np.e / (np.e + 9))


def test_known_clusters_have_centres_of_their_own() -> None:
    strategy, _, _ = run(cluster_map=CLUSTER_MAP)
    assert len(strategy.state.clusters) == len(strategy.state.w) > 1
    assert set(strategy.user_clusters("fedrep-exact").values()) == set(strategy.state.clusters)
    one, _, _ = run(cluster_map=CLUSTER_MAP, fedrep_exact_centre="one")
    assert len(one.state.w) == 1 and np.allclose(one.state.w[0], one.state.wbar)


def test_the_first_layer_is_of_the_inputs_components() -> None:
    """Its rows lie in the span of the leading components; `initial` leaves the model's own."""
    strategy, _, _ = run(fedrep_exact_components=5)
    weight = strategy.state.body[: 20 * 64].reshape(20, 64)
    assert np.linalg.matrix_rank(weight, tol=1e-4) == 5
    left, _, _ = run(fedrep_exact_body="initial")
    network = left.job.network
    assert np.array_equal(left.state.body, network.initial[network.body])


def test_a_new_users_head_is_a_plain_ridge_regression() -> None:
    """From its own rows and the others' centre: what the client makes, beside lstsq."""
    strategy, _, _ = run(num_users=20, new_users=0.3)
    state, network = strategy.state, strategy.job.network
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(9, 64)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 9))
    network.set(network.body, state.body)
    of = exact_heads.designs(network, all_features(network, x), Examples(x, y, np.array([9])), 10)
    w = exact_heads.as_theta(network, state.wbar[None])[0]
    root = state.rho**-0.5
    z = np.vstack([of.z.numpy(), root * np.eye(len(w))])
    wanted = np.linalg.lstsq(z, np.vstack([np.eye(10)[y], root * w]), rcond=None)[0]
    found = exact_heads.heads(of, w[None], 1 / state.rho)[0]
    assert np.allclose(found, wanted, atol=1e-6)


def test_new_users_have_a_head_at_once() -> None:
    _, result, _ = run(num_users=20, new_users=0.3)
    rows = {row["strategy"]: row for row in result.json()}
    new = [row for name, row in rows.items() if "+new" in name]
    assert new and all(row["accuracy"]["mean"] > 0.5 for row in new)


def test_what_has_no_closed_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="known cluster"):
        run(fedrep_exact_centre="known")
    with pytest.raises(ModelError, match="no body"):
        run(model="linear", fedrep_exact_body="pca")


def test_a_user_cannot_claim_more_than_its_labels() -> None:
    """|Y|^2 of classes is the number of samples: what b explains is bounded by it."""
    said, samples = np.array([20.0, 21.0, 1e30]), np.full(3, 20.0)
    assert ONE_HOT.wrong(said, samples).tolist() == [False, True, True]
    rng = np.random.default_rng(0)
    z, labels = rng.normal(size=(6, 40, 4)), rng.integers(0, 2, (6, 40))
    y = np.eye(2)[labels]
    y[..., 0] = z[..., 0] > 0
    y[..., 1] = 1 - y[..., 0]
    a, b = np.einsum("nmd,nme->nde", z, z), np.einsum("nmd,nmc->ndc", z, y)
    count = np.full(6, 40.0)
    honest = fit(Rows(a, b, count, count), np.zeros(6, int), 1)
    a[0], b[0] = 1e12 * np.eye(4), -1e6 * b[0] / np.abs(b[0]).max()  # as wrong as it may be
    assert possible(Rows(a, b, count, count)).all()
    attacked = fit(Rows(a, b, count, count), np.zeros(6, int), 1)
    gap = np.abs(attacked.wbar - honest.wbar).max()
    assert gap < 0.5 * np.abs(honest.wbar).max()


def test_sums_of_no_data_are_left_out() -> None:
    """A matrix that is not Z'Z, and products that no labels have, with the user's name."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(3, 20, 4)), rng.normal(size=(3, 20, 2))
    a, b = np.einsum("nmd,nme->nde", z, z), np.einsum("nmd,nmc->ndc", z, y)
    square, records = np.square(y).sum((1, 2)), np.full(3, 20.0)
    assert possible(Rows(a, b, square, records)).all()
    a[0] -= 2 * np.eye(4) * np.linalg.eigvalsh(a[0])[-1]
    b[1] *= 1e3
    assert possible(Rows(a, b, square, records)).tolist() == [False, False, True]


def test_clusters_appear(tmp_path: Path) -> None:
    """Users whose classes have other names are found; each of them is drawn to its own centre."""
    rng = np.random.default_rng(0)
    means, names = rng.normal(size=(4, 12)), np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    user = np.repeat(np.arange(16), 60)
    kind = rng.integers(0, 4, len(user))
    x = (means[kind] + 0.5 * rng.normal(size=(len(user), 12))).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, label=names[user % 2, kind], user=user.astype(str))
    strategy, result, _ = run(
        dataset="npz",
        partition="natural",
        num_users=0,
        fedrep_exact_centre="clusters",
        data_file=str(tmp_path / "own.npz"),
    )
    found = strategy.user_clusters("fedrep-exact")
    assert {u: found[u] for u in found} == {u: found[str(int(u) % 2)] for u in found}
    assert len(set(found.values())) == 2 == len(strategy.state.w)
    assert result.json()[0]["accuracy"]["mean"] > 0.95


# Users who lie.

LIES = {
    "a million times": lambda name, true, came: 1e6 * true,
    "a constant": lambda name, true, came: np.ones_like(true),
    "turned": lambda name, true, came: -10 * true,
    "sums alone": lambda name, true, came: 1e6 * true if name == "a" else true,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_in_the_first_exchange_is_set_aside_and_named(lie: str) -> None:
    _, honest, _ = run()
    with lying(client_of("fedrep-exact"), {"3"}, LIES[lie]):
        strategy, result, notes = run()
    others = [user for user in honest["fedrep-exact"].per_user if user != "3"]
    usual, now = (
        np.mean([found["fedrep-exact"].per_user[user] for user in others])
        for found in (honest, result)
    )
    assert now > usual - 0.02
    named = lie in ("a million times", "turned")  # the others do no harm
    assert strategy.state.aside == ["3"] * named
    assert any("user 3 is set aside" in note for note in notes.notes) == named
    if named:
        assert "user 3" in str(strategy.findings()) and "3" in result["fedrep-exact"].per_user


def test_without_a_liar_nobody_is_set_aside_and_means_are_the_plain_ones() -> None:
    strategy, _, _ = run()
    assert not strategy.state.aside
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 40)).astype(np.float32)
    users = strategy.members.users
    numbers = {"num-examples": np.ones(12)}
    replies = Replies(users, rows={"mean": rows}, metrics=numbers)
    found, aside = means_of_most(strategy.config, replies)
    plain = ExactSum(rows.shape[1:]).add(rows, np.ones(12)).mean(12.0, np.dtype(np.float32))
    assert not aside and np.array_equal(found["mean"], plain)
    rows[3] *= 1e6
    found, aside = means_of_most(strategy.config, replace(replies, rows={"mean": rows}))
    assert aside == [users[3]]
    rest = np.delete(rows, 3, 0).mean(0)
    np.testing.assert_allclose(found["mean"], rest, rtol=1e-5, atol=1e-6)


def inputs(rank: int, p: int = 60) -> np.ndarray:
    """Rows that vary in so many directions, around a mean."""
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(300, rank)) * np.geomspace(1, 0.1, rank) @ rng.normal(size=(rank, p)) + 2.0
    )


@pytest.mark.parametrize(("rank", "wanted"), [(12, 12), (60, 50)])
def test_a_sketch_has_the_components(rank: int, wanted: int) -> None:
    """Exact where the inputs vary in fewer directions than it has columns, or it has them all."""
    x = inputs(rank)
    mean, p = x.mean(0), x.shape[1]
    assert sketched(12, p) == 32 and sketched(50, p) == 60
    variance, directions = components(mean, x.T @ (x @ probes(p, wanted)) / len(x), wanted)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    values, vectors = values[::-1][:wanted], vectors[:, ::-1][:, :wanted]
    assert np.allclose(variance, values, rtol=1e-3, atol=1e-4 * values[0])
    leading = slice(0, 5)
    assert np.allclose(np.abs(np.sum(directions * vectors, 0))[leading], 1, atol=1e-4)


def test_inputs_that_do_not_vary_are_refused() -> None:
    mean = np.ones(8)
    sketch = np.outer(mean, mean) @ probes(8, 4)
    with pytest.raises(ModelError, match="do not vary"):
        components(mean, 0 * sketch + np.outer(mean, mean @ probes(8, 4)), 4)


def test_a_user_of_one_class_among_users_of_all_is_not_set_aside() -> None:
    """Its mean is ten of the others' differences out, and yet within what records differ by."""
    rng, data = np.random.default_rng(0), {}
    centres = 1.5 * rng.normal(size=(5, 12))
    for user in range(8):
        y = rng.integers(0, 5, 900) if user else np.full(900, 2)
        data[str(user)] = ((centres[y] + rng.normal(size=(900, 12))).astype(np.float32), y)
    x = [x for x, _ in data.values()]
    means = np.stack([one.mean(0) for one in x])
    assert outlying(means)[0] and not outlying(means)[1:].any()
    sketches = np.stack([one.T @ (one @ probes(12, 3)) / len(one) for one in x])
    size = {name: RECORDS_DIFFER * one for name, one in spread(means, sketches).items()}
    true = np.sqrt(np.median([np.trace(np.cov(one.T, bias=True)) for one in x]))
    assert size["mean"] == pytest.approx(RECORDS_DIFFER * true, rel=0.2)
    assert not outlying(means, least=size["mean"]).any()
    assert not outlying(sketches, least=size["sketch"]).any()
    for lie in (1e3, -1e3):
        assert outlying(np.r_[lie * means[:1], means[1:]], least=size["mean"])[0]
        assert outlying(np.r_[lie * sketches[:1], sketches[1:]], least=size["sketch"])[0]
    seconds = np.stack([one.T @ one / len(one) for one in (np.c_[x, np.ones(900)] for x in x)])
    below = np.tril_indices(13)
    found = differences(seconds[:, below[0], below[1]])["first"]
    assert found == pytest.approx(true, rel=1e-4)


def test_it_says_when_what_users_have_alone_tells_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Two units that nobody trained see little of one input in twenty; trained ones find it."""
    rng, data = np.random.default_rng(0), {}
    for user in range(8):
        y = rng.integers(0, 2, 60)
        x = rng.normal(size=(60, 20)).astype(np.float32)
        x[:, 0] = (2 * y - 1) + rng.normal(size=60) * 0.1
        data[str(user)] = (x, y)
    for hidden, loses in (("2", True), ("40", False)):
        keys = {"hidden": hidden, "lr": 0.1, "scale": "none"}
        corsage.simulate("fedrep-exact", data, **keys)
        said = capsys.readouterr().err
        assert ("fedrep-exact loses: of left-out records heads" in said) == loses, said


@pytest.mark.parametrize("clusters", [1, 3])
def test_centres_without_a_user_are_those_of_the_others(clusters: int) -> None:
    """Generalised least squares of the other users' rows, at the same variances."""
    rng, own = np.random.default_rng(0), np.arange(7) % clusters
    z = [rng.normal(size=(9, 3)) for _ in own]
    y = [rng.normal(size=(9, 2)) for _ in own]
    a, b = (np.stack([p.T @ q for p, q in zip(z, other, strict=True)]) for other in (z, y))
    rows = Rows(a, b, np.array([np.sum(part**2) for part in y]), np.full(7, 9.0))
    found = replace(fit(rows, own, clusters), rho=0.5, tau=0.3 * (clusters > 1))
    got = without(rows, own, found, np.arange(7))
    for user, centre in enumerate(got):
        p, q = np.zeros((3, 3)), np.zeros((3, 2))
        for other in np.flatnonzero((own == own[user]) & (np.arange(7) != user)):
            weight = np.linalg.inv(np.eye(9) + 0.5 * z[other] @ z[other].T)
            p, q = p + z[other].T @ weight @ z[other], q + z[other].T @ weight @ y[other]
        if clusters > 1:
            p, q = p + np.eye(3) / 0.3, q + found.wbar / 0.3
        assert centre == pytest.approx(np.linalg.solve(p, q))
