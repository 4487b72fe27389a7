"""Texts: whole numbers that are words reach an embedding as they are, from wherever they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import corsage
from corsage import LocalGrid, make_client_app
from corsage.app.engines import simulate
from corsage.app.inference.export import content
from corsage.app.results.run import Run
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError, DataError
from corsage.strategies import strategy_class
from tests.support.own_models import Text, attending

Texts = list[tuple[Any, Any, Any, Any]]
SPECIAL = 11
"""Words from here on are said of one class alone."""
LONG: dict[str, Any] = {"num_rounds": 6, "local_epochs": 3, "lr": 0.3, "progress": False}


def texts(users: int = 5, kind: type = np.int64) -> Texts:
    """Six words a sample, of which some say the class."""
    rng, found = np.random.default_rng(0), []
    for _ in range(users):
        y = np.arange(36) % 3
        x = rng.integers(0, SPECIAL, (36, 6))
        own = SPECIAL + 3 * y[:, None] + rng.integers(0, 3, x.shape)
        x = np.where(rng.random(x.shape) < 0.5, own, x).astype(kind)
        found.append((x[:24], y[:24], x[24:], y[24:]))
    return found


def learned(run: Run, users: Texts) -> None:
    """Each user's model, loaded, says of raw words what was scored."""
    for row in run:
        assert run[row].evaluate() == run[row].per_user
        for user, score in run[row].per_user.items():
            *_, x, y = users[int(user)]
            assert (run[row].user(user).predict(x) == y).mean() == score
        assert run[row].score.mean > 0.7, row


@pytest.mark.parametrize(
    ("model", "path"), [(Text, "auto"), (Text, "loop"), (attending, "together-4")]
)
def test_words_are_trained_scored_and_predicted_as_they_are(model: Any, path: str) -> None:
    users = texts()
    names = "fedavg,fedrep,ditto,knn-per,perfedavg"
    learned(corsage.simulate(names, users, model=model, training_path=path, **LONG), users)


def test_a_loaded_model_takes_words_in_every_form(tmp_path: Path) -> None:
    users = texts()
    keys = {**npz(users, tmp_path), "model": "tests.support.own_models:Text", "num_rounds": 2}
    keys = {name.replace("_", "-"): value for name, value in keys.items()}
    folder = simulate(Config.parse({**keys, "run-dir": str(tmp_path), "strategy": "fedrep"}))
    run = corsage.load(folder)
    assert run["fedrep"].evaluate() == run["fedrep"].per_user
    model, x = run["fedrep"].user("3"), users[3][2]
    words = torch.from_numpy(x)
    assert torch.equal(model.module()(words), model.outputs(x))
    assert model.inputs(x).dtype == torch.int64
    runtime = pytest.importorskip("onnxruntime")
    (found,) = runtime.InferenceSession(content(model, "onnx")).run(None, {"samples": x})
    assert np.allclose(found, model.outputs(x), atol=1e-5)


def hugging_face(users: Texts) -> Any:
    datasets = pytest.importorskip("datasets")
    parts = [
        {name: datasets.Dataset.from_dict({"ids": x.tolist(), "label": y.tolist()})
         for name, x, y in (("train", *own[:2]), ("test", *own[2:]))}
        for own in users
    ]  # fmt: skip
    return {"data": parts}


def npz(users: Texts, folder: Path) -> Any:
    test = np.concatenate([[False] * len(own[0]) + [True] * len(own[2]) for own in users])
    x = np.concatenate([np.concatenate([own[0], own[2]]) for own in users])
    y = np.concatenate([np.concatenate([own[1], own[3]]) for own in users])
    user = np.repeat(np.arange(len(users)), [len(own[0]) + len(own[2]) for own in users])
    np.savez(folder / "texts.npz", x=x, y=y, user=user, test=test)
    return {"dataset": "npz", "data_file": str(folder / "texts.npz")}


@pytest.mark.parametrize("door", ["hugging face", "npz", "bytes", "int32", "floats"])
def test_every_door_gives_the_same(door: str, tmp_path: Path) -> None:
    users = texts()
    usual = corsage.simulate("fedrep", users, model=Text, **LONG)["fedrep"]
    if door == "npz":
        data = npz(users, tmp_path)
    elif door == "hugging face":
        data = hugging_face(users)
    else:
        kind = {"bytes": np.uint8, "int32": np.int32, "floats": np.float64}[door]
        data = {"data": texts(kind=kind)}
    found = corsage.simulate("fedrep", model=Text, **data, **LONG)["fedrep"]
    assert found.per_user == usual.per_user and found.json()["loss"] == usual.json()["loss"]


def test_an_app_s_own_words_reach_its_own_model() -> None:
    users = texts()
    app = make_client_app(data=lambda context: users[int(context.node_config["partition-id"])])
    keys = {name: value for name, value in LONG.items() if name != "progress"}
    strategy = strategy_class("fedavg")(model=Text, fraction_train=1.0, fine_tune_epochs=0, **keys)
    result = strategy.start(LocalGrid(app, 5))
    usual = corsage.simulate(
        "fedavg", users, model=Text, fraction_train=1.0, fine_tune_epochs=0, **LONG
    )
    usual_loss, loss = usual["fedavg"].json()["loss"], result.json()[0]["loss"]
    assert loss["mean"] == pytest.approx(usual_loss["mean"], abs=1e-5)


class Asking(Text):
    """One that makes whole numbers of its inputs itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.long())


def test_a_table_is_standardised_and_words_are_not() -> None:
    """Whole numbers are columns of a table for models that take numbers."""
    users = texts()
    usual = corsage.simulate("fedavg", users, model=Text, **LONG)
    asking = corsage.simulate("fedavg", users, model=Asking, **LONG)
    assert asking["fedavg"].per_user == usual["fedavg"].per_user
    table = corsage.simulate("fedavg", users, hidden="8", **LONG)["fedavg"].user("0")
    inputs = np.concatenate([table.inputs(own[0]).numpy() for own in users])
    assert inputs.std(0) == pytest.approx(np.ones(6), rel=1e-3)


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [(0.5, r"takes whole numbers .* the samples have 0.5"), (99, "no index of its table")],
)
def test_what_is_no_word_is_refused(spoiled: float, why: str) -> None:
    users = texts(kind=np.float64)
    for own in users:
        own[0][3, 2] = spoiled
    with pytest.raises((DataError, CorsageError), match=why):
        corsage.simulate("fedavg", users, model=Text, num_rounds=1, progress=False)


class Given(nn.Module):
    """A factory with a parameter of its own before the outputs."""

    def __init__(self, width: int = 7, classes: int = 3) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x))


def test_a_parameter_with_a_default_before_the_outputs_keeps_it() -> None:
    run = corsage.simulate("fedavg", texts(), model=Given, num_rounds=1, progress=False)
    assert run["fedavg"].user("0").state_dict()["first.weight"].shape == (7, 6)
