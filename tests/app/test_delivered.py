"""Each user's loaded model says of raw samples what its score in the table is of, to the digit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import corsage
from corsage.app.results.run import Run
from corsage.core.errors import DataError
from corsage.datasets.given.given_samples import Samples
from corsage.datasets.given.given_table import as_it_is, table_of

METHODS = "fedavg,fedrep,fedper,ditto,apfl,lg-fedavg,fedbabu,perfedavg,local,ifca,knn-per,scaffold"
METHODS += ",fedbn,feddyn,fedlc,mr-mtl,fedala,moon,feddbe,fedfomo,fedem,fedrod,fedpac,gpfl"
ANY_LOSS = METHODS.replace("fedlc,", "").replace(",fedrod,fedpac,gpfl", "")
ANY_HEAD = ANY_LOSS.replace("knn-per,", "").replace(",moon,feddbe", "")
WORDS = np.array(["ill", "well", "unknown"])
Users = dict[str, tuple[Any, Any, Any, Any]]


class Normed(nn.Module):
    """A convolution, BatchNorm and dropout under two layers; its answer is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.layer, self.head = nn.Dropout(0.2), nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.norm(self.first(x))).flatten(1)
        h = torch.relu(self.layer(self.drop(h)))
        return self.head(h), h


def images(words: bool = False, kind: type = np.float32) -> Users:
    """Images of three classes, of users of several sizes."""
    rng, found = np.random.default_rng(0), {}
    for number in range(5):
        y = rng.integers(0, 3, 24 + number)
        x = 50 * rng.normal(size=(len(y), 1, 6, 6)) + 30 * y[:, None, None, None] + 100
        x = x.clip(0, 255).astype(kind) if kind is np.uint8 else ((x - 100) / 50).astype(kind)
        own = WORDS[y] if words else y
        found[f"u{number}"] = (x[:16], own[:16], x[16:], own[16:])
    return found


def tables(gaps: float = 0.0, numbers: bool = False, two: bool = False) -> Users:
    """Rows of six columns, of which some cells are missing; labels are words, or numbers."""
    rng, found = np.random.default_rng(1), {}
    for user, (x, y, x_test, y_test) in images().items():
        parts = []
        for inputs, own in ((x, y), (x_test, y_test)):
            rows = inputs.reshape(len(inputs), -1)[:, :6].astype(np.float64) * [1, 10, 1, 1e3, 1, 1]
            label = rows @ np.arange(6.0) if numbers else WORDS[own.clip(max=1) if two else own]
            parts += [np.where(rng.random(rows.shape) < gaps, np.nan, rows), label]
        found[user] = (parts[0], parts[1], parts[2], parts[3])
    return found


LINEAR = "fedavg,fedrep,ditto,local,mixed-model,exact-local,exact-global,knn-per"
CASES: dict[str, tuple[str, Users, dict[str, Any]]] = {
    "a perceptron": (METHODS, images(), {"hidden": "8"}),
    "BatchNorm": (METHODS, images(), {"model": Normed}),
    "BatchNorm, frozen": (METHODS, images(), {"model": Normed, "batch_norm": "frozen"}),
    "BatchNorm, personal": (
        ANY_HEAD.replace("lg-fedavg,", ""),
        images(),
        {"model": Normed, "batch_norm": "personal"},
    ),
    "a frozen front": (METHODS, images(), {"model": Normed, "frozen": "first,norm"}),
    "a head of two layers": (
        ANY_HEAD,
        images(),
        {"model": Normed, "head": "layer,head"},
    ),
    "double precision": (METHODS, images(kind=np.float64), {"hidden": "8"}),
    "bytes": (METHODS, images(kind=np.uint8), {"hidden": "8"}),
    "classes by name": (METHODS, images(words=True), {"hidden": "8"}),
    "smoothed labels": (
        ANY_LOSS.replace(",fedem", ""),
        images(),
        {"hidden": "8", "label_smoothing": 0.1},
    ),
    **{
        f"columns, scale={scale}": (METHODS, tables(), {"hidden": "8", "scale": scale, "lr": lr})
        for scale, lr in (("federated", 0.1), ("user", 0.1), ("none", 1e-6))
    },
    "missing cells": (METHODS, tables(gaps=0.1), {"hidden": "8", "missing": "flag"}),
    **{
        f"heads at the end, {what}": (
            "fedavg,fedper,ditto,fedbabu,scaffold",
            users,
            {"hidden": "8", "lr": 0.01, "end_heads": ends, "fine_tune_epochs": 0},
        )
        for what, users, ends in (
            ("words", images(words=True), "exact,gauss,prior,auto"),
            ("numbers", tables(numbers=True), "auto"),
        )
    },
    "heads at the end, one output": (
        "fedavg,fedrep",
        tables(two=True),
        {"hidden": "8", "loss": "logistic", "end_heads": "exact,gauss,prior"},
    ),
    "two classes, linear": (LINEAR, tables(two=True), {"model": "linear"}),
    "numbers": (
        ANY_LOSS.replace("knn-per,", ""),
        tables(numbers=True),
        {"hidden": "8", "lr": 0.01},
    ),
    "numbers, linear": (
        LINEAR.replace(",knn-per", ""),
        tables(numbers=True, gaps=0.1),
        {"model": "linear", "missing": "mean", "lr": 0.01},
    ),
}


WHOLE = ("a perceptron", "BatchNorm", "BatchNorm, personal", "numbers")
"""Cases with all methods; the others have a third of them each, in turns."""


@pytest.mark.parametrize("case", CASES)
def test_the_table_is_of_what_a_loaded_model_predicts(case: str) -> None:
    methods, users, keys = CASES[case]
    if case not in WHOLE and methods.count(",") > 10:
        methods = ",".join(methods.split(",")[[*CASES].index(case) % 3 :: 3])
    keys = {"num_rounds": 2, "new_users": 0.2, "fine_tune_epochs": 1, "progress": False, **keys}
    run = corsage.simulate(methods, users, **keys)
    assert not run.failed and len(run) > len(methods.split(","))
    for row in run:
        assert run[row].evaluate() == run[row].per_user
        for user, score in run[row].per_user.items():
            assert said(run, row, user, users) == pytest.approx(score, rel=1e-9), (row, user)


def said(run: Run, row: str, user: str, users: Users) -> float:
    """The measure of a user's predictions, as anybody would compute it."""
    *_, x, y = users[user]
    predicted = run[row].user(user).predict(x)
    if run[row].measure == "rmse":
        return float(np.sqrt(np.mean((predicted - y) ** 2)))
    return float(np.mean(predicted == y))


@pytest.mark.parametrize("given", [images(words=True), tables()])
def test_words_that_each_node_would_number_for_itself_are_refused(given: Users) -> None:
    """An app's own data are at its node alone."""
    one = {"a": Samples(*given["u0"][:2])}
    with pytest.raises(DataError, match=r"labels are words .*: number the classes"):
        as_it_is(table_of(one, {}))
