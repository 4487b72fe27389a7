"""The marginal likelihood of generalised mixed models: by dense sums, and its derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from corsage.core.arrays import Floats, Ints
from corsage.core.families import FAMILIES
from corsage.solvers.known_clusters.generalised.ascent import Ascent
from corsage.solvers.known_clusters.generalised.joint import Integrated, integrated
from corsage.solvers.known_clusters.generalised.levels import NODES, Design, Jets, layouts
from corsage.solvers.known_clusters.generalised.rows import Rows
from tests.support.marginal import dense, differentiated, joint_laplace

Data = tuple[Floats, Floats, Floats, Ints]
THETA = np.array([0.3, -0.1, 0.2])


def drawn(family: str, users: int = 6) -> Data:
    """x with the column of ones last, labels, weights and users."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(users), rng.integers(1, 6, users))
    n = len(user)
    x = np.column_stack([rng.normal(size=(n, 2)), np.ones(n)])
    score, weight = x @ np.array([0.5, -0.3, 0.2]), np.ones(n)
    chance = 1 / (1 + np.exp(-score))
    if family == "logistic":
        return x, (rng.random(n) < chance).astype(float), weight, user
    if family == "binomial":
        weight = rng.integers(1, 5, n).astype(float)
        return x, rng.binomial(weight.astype(int), chance) / weight, weight, user
    if family == "gamma":
        return x, rng.gamma(2, np.exp(score) / 2), weight, user
    return x, rng.poisson(np.exp(score)).astype(float), rng.random(n) + 0.5, user


def rows_of(family: str, data: Data) -> Rows:
    """The same as the solver has them."""
    x, y, weight, user = data
    sizes = np.unique(user, return_counts=True)[1]
    return Rows(FAMILIES[family], *map(torch.from_numpy, (x, y, weight)), sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_quadrature_is_the_integral(family: str) -> None:
    data, shaped = drawn(family), FAMILIES[family].shaped
    basis = np.array([[[0.0], [0.0], [1.0]]])
    tau = np.array([0.7, 0.3][: 1 + shaped])
    found, _, _ = rows_of(family, data).jets(THETA, tau, basis, np.zeros((3, 0)), NODES)
    assert found[0] == pytest.approx(dense(family, *data, THETA, 0.7, 0.3), rel=1e-6)


@pytest.mark.parametrize("nodes, levels", [(NODES, 1), (0, 1), (0, 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_derivatives_are_those_of_autograd(family: str, nodes: int, levels: int) -> None:
    """With numbers that are 0 among tau, a variance that is held, and directions of all columns."""
    rows, shape = rows_of(family, drawn(family)), [0.3] * FAMILIES[family].shaped
    own = np.array([[1.0, 0.0], [0.3, 1.0], [-0.2, 0.5]])
    basis = np.einsum("pc,kcr->kpr", own, layouts("full", 2))
    around = own[:, : 2 * (levels - 1)]
    if nodes:
        basis = np.array([[[0.0], [0.3], [1.0]]])
    for tau, there in (([0.5, 0.2, 0.7], 1), ([0.0, 0.2, 0.7], 1), ([0.0] * 3, 1), ([0.5] * 3, 0)):
        place = THETA, np.array([*tau[: len(basis)], *shape]), there * basis, around, nodes
        for found, wanted in zip(rows.jets(*place), differentiated(rows, *place), strict=True):
            assert found == pytest.approx(wanted.numpy(), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("levels", [1, 2])
def test_levels_above_are_the_joint_laplace_approximation_with_its_derivatives(levels: int) -> None:
    """Two users each in four clusters, or these in two units; random intercepts and slopes."""
    x, y, weight, user = drawn("poisson", 8)
    parents = (
        [np.arange(4) // 2, np.zeros(2, int)][2 - levels :] if levels > 1 else [np.zeros(4, int)]
    )
    unit = [user // 2, user // 4][:levels]
    inner, around = layouts("full", 2), np.eye(3)[:, 1:]
    basis = np.einsum("pc,kcr->kpr", around, inner)
    design = Design(np.eye(3), np.zeros(3), basis, around, [inner] * levels, False)
    blocks = [
        rows_of("poisson", tuple(part[unit[0] == j] for part in (x, y, weight, user)))  # type: ignore[arg-type]
        for j in range(4)
    ]

    def at(psi: Floats, effects: list[Floats], looks: int = 2) -> Integrated:
        for _ in range(looks):
            theta, tau = design.centres(psi, effects, parents)[0], design.tau(psi)
            parts = [
                own.jets(w, tau, basis, around, 0) for own, w in zip(blocks, theta, strict=True)
            ]
            jets = Jets(*map(np.stack, zip(*parts, strict=True)))
            place = np.column_stack([theta, np.tile(tau, (4, 1))])
            found = integrated(design, jets, place, effects, parents, psi)
            effects = found.effects
        return found

    tau = np.array([[0.7, 0.2, 0.5], [0.4, -0.3, 0.6], [0.3, 0.1, 0.4]])[: 1 + levels]
    psi = np.concatenate([THETA, tau.ravel()])
    found = at(psi, [np.zeros((len(own), 2)) for own in parents], 5)
    z = np.hstack([
        (x @ design.root(psi, level)) * (place == one)[:, None]
        for level, place in enumerate([user, *unit])
        for one in np.unique(place)
    ])  # fmt: skip
    plain = joint_laplace("poisson", x @ THETA, y, weight, 0.0, z, np.zeros(z.shape[1]))
    assert found.gap < 1e-10
    assert float(found.jet.value) == pytest.approx(plain, abs=1e-5)
    for number in (1, -1):
        steps = (at(psi + h * np.eye(len(psi))[number], found.effects) for h in (1e-5, -1e-5))
        up, down = (one.jet for one in steps)
        assert found.jet.slope[number] == pytest.approx((up.value - down.value) / 2e-5, abs=1e-6)
        assert found.jet.bend[number] == pytest.approx((up.slope - down.slope) / 2e-5, abs=1e-6)


def test_ascent_finds_the_top_of_a_function_that_is_no_quadratic() -> None:
    """-cosh summed: a step of Newton's from far away would miss it."""
    centre = np.array([3.0, -2.0])
    search, looks = Ascent(np.zeros(2)), 0
    while not search.settled and looks < 60:
        away = search.ahead - centre
        search = search.look(float(-np.cosh(away).sum()), -np.sinh(away), -np.diag(np.cosh(away)))
        looks += 1
    assert search.at == pytest.approx(centre, abs=1e-4)
    assert not search.open.any()


def test_ascent_that_begins_where_a_function_bends_upwards_has_a_top() -> None:
    """exp(-x^2/2): beyond its shoulders, where it curves the other way, nothing is open."""
    search, looks = Ascent(np.array([2.0])), 0
    while not search.settled and looks < 60:
        x = search.ahead
        value = np.exp(-(x**2) / 2)
        search = search.look(float(value[0]), -x * value, np.diag((x**2 - 1) * value))
        assert not search.open.any()
        looks += 1
    assert search.at == pytest.approx(0, abs=1e-3)


def test_ascent_ends_where_there_is_no_top() -> None:
    """1 - exp(-x) grows for ever: it is open, not converged."""
    search, looks = Ascent(np.zeros(1)), 0
    while not search.settled and looks < 60:
        fall = np.exp(-search.ahead)
        search = search.look(float(1 - fall[0]), fall, -np.diag(fall))
        looks += 1
    assert search.open.all() and looks < 60


def test_a_likelihood_that_curves_upwards_has_not_run_out() -> None:
    """Between its middle and its top a variance has a likelihood that is not concave."""
    found = Ascent(np.array([0.5, 0.5])).look(-9.0, np.array([1.0, 1.0]), np.diag([-4.0, 2.0]))
    assert not found.open.any() and not found.settled
    flat = found.look(-8.0, np.array([1e-5, 1.0]), np.diag([-1e-5, -2.0]))
    assert flat.open.tolist() == [1, 0]


def test_amounts_have_no_unit_and_no_shape_beyond_rounding() -> None:
    x, y, weight, user = drawn("gamma")
    one, basis = np.zeros((3, 0)), np.eye(3)[-1][None, :, None]
    small, own = np.log(1e-30), np.array([0.4, 0.1])
    there = rows_of("gamma", (x, y, weight, user)).jets(THETA, own, basis, one, NODES)
    tiny = rows_of("gamma", (x, y * np.exp(small), weight, user))
    found = tiny.jets(THETA + small * np.eye(3)[-1], own, basis, one, NODES)
    assert found[0] == pytest.approx(there[0] - small * weight.sum())
    assert found[1] == pytest.approx(there[1], abs=1e-6)
    for shape in (30.0, 40.0):
        exact = rows_of("gamma", (x, np.exp(x @ THETA), weight, user))
        _, slope, bend = exact.jets(THETA, np.array([0.0, shape]), basis, one, NODES)
        assert slope[0, -1] == bend[0, -1, -1] == 0


@pytest.mark.parametrize("family", ["gamma", "poisson", "binomial"])
def test_no_deviance_is_below_0(family: str) -> None:
    score = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    loss = FAMILIES[family].loss
    assert (loss.value(score, loss.mean(score)) >= 0).all()
