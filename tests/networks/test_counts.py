"""The measures beside scikit-learn's: of each user, and of all samples together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn import metrics as sk

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError
from corsage.core.measures import MEASURES, Measure, chosen, reported
from corsage.networks.batches import Examples, Units
from corsage.networks.criterion import CROSS_ENTROPY, Criterion, criterion_of
from corsage.networks.user_scores import score

Matrix = NDArray[np.float64]
OF_CLASSES = [measure for measure in MEASURES.values() if measure.classes]
OF_NUMBERS = [measure for measure in MEASURES.values() if not measure.classes]
SQUARED = criterion_of(ModelKeys(loss="squared"), 0)
LOGISTIC = criterion_of(ModelKeys(loss="logistic"), 2)


class Case:
    """Users with random outputs and labels, and what they report of them."""

    def __init__(self, seed: int, sizes: list[int], classes: int, kind: Criterion) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.sizes, width = sum(sizes), np.array(sizes), kind.outputs(classes)
        self.u = rng.normal(size=(self.n, width)) * 2
        if width < 3:  # with ties, in numbers whose differences are exact
            self.u = np.round(4 * self.u) / 4
        labels = rng.integers(0, max(classes, 1), self.n)
        self.y = np.round(rng.normal(3.0, 2.0, self.n), 1) if kind.numbers else labels
        data = Examples(torch.zeros(self.n, 1), torch.from_numpy(self.y), self.sizes)
        self.measures = OF_CLASSES if classes else OF_NUMBERS
        found = score(kind, torch.from_numpy(self.u), data, self.measures, classes)
        self.counts = {**found.counts, "num-examples": found.n.astype(np.float64)}
        self.users = [np.arange(e - n, e) for n, e in zip(sizes, np.cumsum(sizes), strict=True)]

    def of(self, rows: NDArray[Any]) -> tuple[Matrix, Matrix]:
        """The labels and outputs of some samples."""
        return self.y[rows], self.u[rows]


def chances(u: Matrix) -> Matrix:
    """The chances of classes."""
    if u.shape[1] > 1:
        return np.asarray(softmax(u, axis=1))
    return np.concatenate([1 - expit(u), expit(u)], axis=1)


def calls(u: Matrix) -> NDArray[np.int64]:
    """The class that each sample is taken for."""
    return np.asarray(u.argmax(1) if u.shape[1] > 1 else u[:, 0] > 0, np.int64)


def areas(y: Matrix, u: Matrix) -> float:
    """Scikit-learn's area of two classes, or the mean over the classes that are there."""
    if len(np.unique(y)) < 2:
        return math.nan
    if u.shape[1] < 3:
        return float(sk.roc_auc_score(y, u[:, -1] - (u[:, 0] if u.shape[1] == 2 else 0.0)))
    there, p = np.unique(y), chances(u)
    return float(np.mean([sk.roc_auc_score(y == c, p[:, int(c)]) for c in there]))


def balanced(y: Matrix, u: Matrix) -> float:
    """Scikit-learn's balanced accuracy, where there are two classes."""
    if len(np.unique(y)) < 2:
        return math.nan
    return float(sk.balanced_accuracy_score(y, calls(u)))


def f1(y: Matrix, u: Matrix) -> float:
    """Scikit-learn's F1: of class 1, or the mean over classes."""
    if max(u.shape[1], 2) > 2:
        return float(sk.f1_score(y, calls(u), average="macro"))
    return float(sk.f1_score(y, calls(u), zero_division=np.nan))


THEIRS: dict[str, Callable[[Matrix, Matrix], float]] = {
    "accuracy": lambda y, u: sk.accuracy_score(y, calls(u)),
    "balanced-accuracy": balanced,
    "auc": areas,
    "f1": f1,
    "log-loss": lambda y, u: sk.log_loss(y, chances(u), labels=range(chances(u).shape[1])),
    "rmse": lambda y, u: sk.root_mean_squared_error(y, u[:, 0]),
    "mse": lambda y, u: sk.mean_squared_error(y, u[:, 0]),
    "mae": lambda y, u: sk.mean_absolute_error(y, u[:, 0]),
    "r2": lambda y, u: sk.r2_score(y, u[:, 0]) if len(np.unique(y)) > 1 else math.nan,
}
KINDS = {"softmax": (3, CROSS_ENTROPY), "two": (2, CROSS_ENTROPY)}
KINDS |= {"sigmoid": (2, LOGISTIC), "numbers": (0, SQUARED)}


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any),
)
@settings(max_examples=25, deadline=None)
def test_measures_are_those_of_scikit_learn(kind: str, seed: int, sizes: list[int]) -> None:
    classes, criterion = KINDS[kind]
    case = Case(seed, sizes, classes, criterion)
    there = np.flatnonzero(case.sizes)
    counts = {name: values[there] for name, values in case.counts.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of classes that are not there
        for measure in case.measures:
            theirs = THEIRS[measure.name]
            each = [theirs(*case.of(case.users[u])) for u in there]
            np.testing.assert_allclose(measure.user(counts), each, rtol=1e-12, atol=1e-12)
            pooled, whole = measure.pooled(counts), theirs(case.y, case.u)
            if measure.name == "auc" or math.isnan(whole):
                assert pooled is None
            else:
                assert pooled == pytest.approx(whole, rel=1e-11, abs=1e-12)


def test_areas_of_all_classes_are_those_of_scikit_learn() -> None:
    case = Case(0, [60], 3, CROSS_ENTROPY)
    theirs = sk.roc_auc_score(case.y, chances(case.u), multi_class="ovr", average="macro")
    assert MEASURES["auc"].user(case.counts)[0] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_reported_is_what_is_declared(kind: str) -> None:
    classes, criterion = KINDS[kind]
    case = Case(1, [7, 0, 1], classes, criterion)
    declared = {number.name: number for number in reported(case.measures, classes)}
    for name, values in case.counts.items():
        if name != "num-examples":
            assert not declared[name].wrong(values, case.counts["num-examples"]).any(), name
    needed = {name for name, number in declared.items() if not number.optional}
    assert needed - {"loss"} <= {*case.counts}


@pytest.mark.parametrize("kind", KINDS)
def test_what_users_report_cannot_lead_out_of_range(kind: str) -> None:
    """Counts that contradict each other are of no use to whoever sends them."""
    classes, _ = KINDS[kind]
    measures = OF_CLASSES if classes else OF_NUMBERS
    rng, n = np.random.default_rng(0), np.full(400, 9.0)
    counts = {"num-examples": n}
    for number in reported(measures, classes):
        high = min(number.high, number.per_sample * 9)
        ends = rng.choice([max(number.low, -1e140), 0.0, high, 1e-300, 1.0], 400)
        counts[number.name] = np.clip(np.floor(ends) if number.whole else ends, number.low, high)
    for measure in measures:
        low, high = (bound / measure.factor for bound in measure.bounds)
        values = measure.user(counts)
        values = values[~np.isnan(values)]
        assert np.isfinite(values).all()
        assert ((values >= low) & (values <= high)).all(), measure.name
        assert measure.pooled(counts) is None or math.isfinite(measure.pooled(counts) or 0.0)


@pytest.mark.parametrize("units", [None, (3.7, 0.3)])
def test_labels_that_are_all_alike_have_no_share_of_variance(
    units: tuple[float, float] | None,
) -> None:
    """Their mean is rounded, and so is what was standardised: none of it is a variance."""
    sizes = np.array([7, 0, 3])
    y = torch.from_numpy(np.repeat([0.1, 0.1], [7, 3]))
    scale = Units(*np.tile(np.array(units)[:, None], 3)) if units else None
    data = Examples(torch.zeros(10, 1), y, sizes, units=scale)
    found = score(SQUARED, torch.zeros(10, 1), data, [MEASURES["r2"]])
    there = sizes > 0
    counts = {name: values[there] for name, values in found.counts.items()}
    counts["num-examples"] = sizes[there].astype(np.float64)
    assert np.isnan(MEASURES["r2"].user(counts)).all()
    assert MEASURES["r2"].pooled(counts) is None


def named(words: str, classes: int, loss: str = "cross-entropy") -> list[str]:
    """The names of the measures that are chosen."""
    return [measure.name for measure in chosen(words, classes, loss)]


def test_which_measures_labels_have() -> None:
    assert named("auto", 10) == ["accuracy"]
    assert named("auto", 0) == ["rmse"]
    assert named("auc, f1", 2) == ["auc", "f1"]


@pytest.mark.parametrize(
    ("words", "classes", "loss", "why"),
    [
        ("rmse", 2, "logistic", "measures=rmse: the labels are 2 classes"),
        ("auc", 0, "squared", "measures=auc: the labels are numbers"),
        ("log-loss", 2, "squared-hinge", "gives scores and no probabilities"),
        ("f1", 2000, "cross-entropy", "2000 classes are more than"),
        ("accuracy,acuracy", 2, "logistic", "acuracy is no measure. Did you mean accuracy?"),
        ("auc,auc", 2, "logistic", "auc is named twice"),
        ("auto,auc", 2, "logistic", "auto stands alone"),
        (" ,", 2, "logistic", "name at least one"),
    ],
)
def test_measures_that_are_refused(words: str, classes: int, loss: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        chosen(words, classes, loss)
    assert "\n" not in str(error.value)


def test_no_measure_without_its_scikit_learn() -> None:
    assert {*THEIRS} == {*MEASURES}
    assert all(isinstance(measure, Measure) for measure in MEASURES.values())
