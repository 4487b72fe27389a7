"""Every model that the table names can be loaded, and says what was reported of it."""

from __future__ import annotations

import csv
import errno
import io
import mmap
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import corsage
from corsage.app.engines import simulate
from corsage.app.inference.export import content
from corsage.app.results.header import Header
from corsage.app.results.row import NoModel
from corsage.app.results.rowfile import RowFile, encoded, joined
from corsage.app.results.user_model import UserModel
from corsage.app.run.resuming import read_config
from corsage.clients.base import Models
from corsage.clients.fedavg import FedAvgClient
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.keys import NoKeys
from corsage.networks.batches import Examples
from tests.support import two_models
from tests.support.federations import KINDS, settings

TABLES = ("users", "clusters", "coefficients")
SIX = ("fedrep", "fedrep+new")
MORE = {"new_users": 0.2, "fine_tune_epochs": 2, "num_rounds": 2, "convex_report": True}


@pytest.mark.parametrize("name", KINDS)
def test_loaded_models_give_the_numbers_that_were_reported(name: str, tmp_path: Path) -> None:
    """Of every row and every user, whether it was ever drawn or is new: the difference is 0."""
    run = corsage.load(simulate(settings(name, strategy=name, run_dir=str(tmp_path), **MORE)))
    assert {name, f"{name}+new"} <= set(run)
    for row in run:
        assert run[row].evaluate() == run[row].per_user


def test_a_run_without_a_folder_has_its_models_too() -> None:
    """In memory: rows of several strategies, and of one that is run twice."""
    keys = {"num_users": 6, "num_rounds": 2, "num_nodes": 3, "new_users": 0.3, "hidden": "8"}
    found = corsage.simulate(["fedrep,fedavg", "fedrep"], progress=False, **keys)
    own, ends = ("fedrep", "fedrep+own", "fedrep+new"), ("", "+ft", "+ft-all", "+new")
    again = [name.replace("fedrep", "fedrep#2") for name in own]
    assert list(found) == [*own, *(f"fedavg{end}" for end in ends), *again]
    for row in found:
        assert found[row].evaluate() == found[row].per_user
    head = found["fedrep"].user(found["fedrep"].users[0]).state_dict()["head.bias"]
    assert found["fedrep"].score.mean == found.results["fedrep"]["fedrep"].score.mean
    assert head.shape == (10,)


class Scaled(torch.nn.Module):
    """Has a parameter that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1)) * self.scale


@pytest.mark.parametrize("name", ["fedrep", "fedavg", "ditto"])
def test_a_parameter_of_one_number_is_kept_with_the_others(name: str) -> None:
    keys = {"num_users": 4, "num_rounds": 2, "fine_tune_epochs": 1, "training_path": "loop"}
    found = corsage.simulate(name, model=Scaled(), progress=False, **keys)
    for row in found:
        assert found[row].evaluate() == found[row].per_user
        assert found[row].user(found[row].users[0]).state_dict()["scale"].shape == ()


def test_linear_models_and_clusters_are_tables(tmp_path: Path) -> None:
    """In double precision; a name that a spreadsheet would compute is text."""
    names, data = ("=1+1", "@b", "c"), np.random.default_rng(0)
    lines = ["who,site,a,b,y"]
    for user in names:
        x = data.normal(size=(20, 2))
        y = x @ [2.0, -1.0] + len(user)
        rows = zip(x.tolist(), y.tolist(), strict=True)
        lines += [f"{user},north,{a},{b},{label}" for (a, b), label in rows]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    keys = {"dataset": "csv", "data-file": str(tmp_path / "t.csv"), "user-column": "who"}
    keys |= {"label-column": "y", "labels": "numbers", "model": "linear", "num-rounds": "3"}
    keys |= {"cluster-column": "site", "run-dir": str(tmp_path), "known-gamma": "1"}
    strategies = {"strategy": "mixed-model,exact-local,fedavg", "known-lambda": "1"}
    folder = simulate(Config.parse({**keys, **strategies}))
    run = corsage.load(folder)
    for row in run:
        assert run[row].evaluate() == run[row].per_user
    own = run["exact-local"].user("c").coefficients
    assert np.allclose(list(own.values()), [2.0, -1.0, 1.0])
    assert run["exact-local"].user("c").module().state_dict()["head.weight"].dtype == torch.float64
    assert run["mixed-model"].clusters == dict.fromkeys(names, "north")
    assert run["exact-local"].clusters == {}
    summary = run["mixed-model"].summary()
    assert "mixed-model: coefficients" in summary and "standard errors" in summary
    assert run["mixed-model"].estimates["coefficients"][0]["name"] == "a"
    assert run["mixed-model"].hurt["alone"].than == "exact-local"
    found = {name: list(csv.reader((folder / f"{name}.csv").open())) for name in TABLES}
    assert found["users"][0] == ["strategy", "user", "train", "test", "cluster", "rmse"]
    assert found["users"][3][:3] == ["mixed-model", "'=1+1", "16"]
    assert [line[1:] for line in found["clusters"][1:]] == [
        [user, "north"] for user in ("c", "'@b", "'=1+1")
    ]
    last = {
        line[2]: float(line[3])
        for line in found["coefficients"]
        if line[:2] == ["exact-local", "c"]
    }
    assert last == own


@pytest.mark.parametrize("scale", ["federated", "user", "none"])
@pytest.mark.parametrize("labels", ["words", "numbers"])
def test_raw_columns_and_words_go_in_and_come_out(scale: str, labels: str, tmp_path: Path) -> None:
    """The preparation of the run is in the file, each user's own too; classes have their names."""
    data = np.random.default_rng(2)
    lines = ["site,age,sex,y"]
    for n in range(90):
        age, sex = 60 + 10 * data.normal(), ("female", "male")[n % 2]
        said = ("ill", "well")[int(age > 60)] if labels == "words" else str(3 * age + n % 2)
        lines.append(f"s{n % 3},{age},{sex},{said}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    keys = {"dataset": "csv", "data-file": str(tmp_path / "t.csv"), "user-column": "site"}
    keys |= {"label-column": "y", "scale": scale, "num-rounds": "2", "run-dir": str(tmp_path)}
    keys |= {"labels": "numbers"} if labels == "numbers" else {}
    strategies = "fedrep,local" + (",exact-local" if labels == "numbers" else "")
    keys |= {"strategy": strategies, "model": "linear", "lr": "1e-5" if scale == "none" else "0.1"}
    run = corsage.load(simulate(Config.parse(keys)))
    for row in run:
        assert run[row].evaluate() == run[row].per_user
    model = run["local"].user("s1")
    by_name = {"sex": ["male", "female"], "age": [50.0, 70.0]}
    one = model.predict({"sex": "male", "age": 50.0})
    assert model.predict(by_name)[0] == one[0]
    if labels == "words":
        assert set(model.predict(by_name)) <= {"ill", "well"} == set(model.classes)
    else:
        exact = run["exact-local"].user("s1").coefficients
        assert exact["age"] == pytest.approx(3, rel=1e-6) and "sex=male" in exact


def test_models_that_were_deleted_are_made_anew(tmp_path: Path) -> None:
    """By --resume, and they are the same."""
    config = settings("fedrep", strategy="fedrep,local", run_dir=str(tmp_path), num_rounds=2)
    folder = simulate(config)
    path = folder / "local" / "models" / "local.safetensors"
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(CorsageError, match=r"local: its models are not in"):
        corsage.load(folder)["local"].user("3")
    again = {**read_config(folder)["config"], "resume": str(folder)}
    simulate(Config.parse(again))
    assert path.read_bytes() == before
    assert not list(folder.glob("*/models/*.piece"))


@pytest.mark.parametrize("keep", ["none", "auto"])
def test_models_that_are_not_kept_are_said_to_be(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corsage.strategies.rounds.evaluations.AUTO_BYTES", 1000)
    keys = {"strategy": "fedrep,fedavg", "keep_models": keep, "run_dir": str(tmp_path)}
    run = corsage.load(simulate(settings("fedrep", num_rounds=1, **keys)))
    with pytest.raises(NoModel, match=r"were not kept .* keep-models=all"):
        run["fedrep"].user("3")
    assert run["fedavg"].evaluate() == run["fedavg"].per_user
    assert run["fedrep"].new_user().start == "what all share, head.weight, head.bias untrained"


def test_a_head_in_closed_form_is_for_nobody_without_records() -> None:
    keys = {"end_heads": "gauss", "num_rounds": 1, "progress": False}
    found = corsage.simulate("fedavg", num_users=3, new_users=0.34, **keys)
    for row in ("fedavg+gauss", "fedavg+gauss+new"):
        assert found[row].evaluate() == found[row].per_user
        with pytest.raises(NoModel, match=r"head in closed form is made of them.*new-users="):
            found[row].new_user()
    assert found["fedavg"].new_user().start == "what all share"


def test_unknown_rows_and_users_are_told_who_there_is() -> None:
    found = corsage.simulate("fedavg", num_users=3, num_rounds=1, progress=False)
    there = r"There are: fedavg, fedavg\+ft, fedavg\+ft-all\.$"
    with pytest.raises(KeyError, match=rf"^fedrep: no such row. {there}"):
        found["fedrep"]
    with pytest.raises(KeyError, match=r"user 9: has no model in fedavg. There are 3: 0, 1, 2\.$"):
        found["fedavg"].user(9)
    assert len(found.table) == 3 and "fedavg" in repr(found)


@pytest.mark.parametrize("scale", ["federated", "user", "none"])
def test_errors_are_those_of_predictions_beside_raw_labels(scale: str) -> None:
    """To the last digits, though models are in single precision; the baseline is one for all."""
    data = np.random.default_rng(4)
    x = data.normal(size=(6, 30, 2))
    y = 1e4 + x @ [3.0, 1.0] + data.normal(size=(6, 30))
    users = [(x[u, :20], y[u, :20], x[u, 20:], y[u, 20:]) for u in range(6)]
    keys = {"model": "linear", "scale": scale, "num_rounds": 2, "lr": 1e-4, "progress": False}
    run = corsage.simulate("fedavg,exact-local", users, **keys)
    for row in run:
        for user, (*_, inputs, labels) in enumerate(users):
            away = run[row].user(user).predict(inputs) - labels
            reported = run[row].per_user[str(user)]
            assert np.sqrt(np.mean(away**2)) == pytest.approx(reported, rel=1e-12)
        assert run[row].evaluate() == run[row].per_user
    assert run["fedavg"].json()["baseline"] == run["exact-local"].json()["baseline"]


class Tied(nn.Module):
    """Two layers of one weight, and a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(1)
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


def test_a_module_of_its_own_keeps_its_ties_and_what_no_state_dict_has() -> None:
    rng = np.random.default_rng(0)
    users = [(rng.random((20, 6), np.float32), rng.integers(0, 3, 20)) for _ in range(2)]
    run = corsage.simulate("ditto", users, model=Tied(), num_rounds=2, progress=False)
    model = run["ditto"].user("0")
    module = model.module()
    assert module.b.weight is module.a.weight and module.seen > 0
    Tied().load_state_dict(model.state_dict(), strict=True)
    assert content(model, "safetensors") and content(model, "torch")


@pytest.mark.parametrize("row", ["two-models", "two-models+sum"])
def test_a_mixture_of_one_s_own_is_one_model_everywhere(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scored, stored, loaded, exported and resumed as one thing, by two files and a line."""
    two_models.register(monkeypatch)
    config = settings("two-models", strategy="two-models", run_dir=str(tmp_path), num_rounds=2)
    folder = simulate(config)
    run = corsage.load(folder)
    assert run[row].evaluate() == run[row].per_user
    model, x = run[row].user("3"), run[row].users_data()["3"].x_test
    each = [state_of(model, k) for k in range(2)]
    p = [torch.softmax(of_mlp(one, model.tensor(x)), 1) for one in each]
    weights = model.state_dict()["weights"]
    if row == "two-models":
        mixed = weights[0] * p[0] + weights[1] * p[1]
        assert weights.tolist() == pytest.approx([5 / 6, 1 / 6])
    else:
        mixed = torch.softmax(sum(of_mlp(one, model.tensor(x)) for one in each), 1)
    raw = (x - model.head.shift) * model.head.scale
    assert np.allclose(torch.softmax(model.of_arrays(x), 1), mixed, atol=1e-6)
    assert torch.equal(model.module()(torch.from_numpy(raw).float()), model.of_arrays(x))
    twin = run[row].user("4").module()
    twin.load_state_dict(torch.load(io.BytesIO(content(model, "torch")), weights_only=True))
    assert torch.equal(twin(model.tensor(x)), model.of_arrays(x))
    runtime = pytest.importorskip("onnxruntime")
    graph = runtime.InferenceSession(content(model, "onnx"))
    (found,) = graph.run(None, {"samples": x.astype(np.float32)})
    assert np.allclose(found, model.of_arrays(x), atol=1e-5)
    path = folder / "two-models" / "models" / f"{row}.safetensors"
    before = path.read_bytes()
    path.unlink()
    simulate(Config.parse({**read_config(folder)["config"], "resume": str(folder)}))
    assert path.read_bytes() == before


def state_of(model: UserModel, k: int) -> dict[str, Tensor]:
    """One of a mixture's models by its parameters' names."""
    named = model.state_dict().items()
    prefix = f"models.{k}."
    return {n.removeprefix(prefix): t for n, t in named if n.startswith(prefix)}


def of_mlp(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The outputs of an MLP of one hidden layer."""
    h = torch.relu(x.flatten(1) @ state["fc1.weight"].T + state["fc1.bias"])
    return h @ state["head.weight"].T + state["head.bias"]


def test_a_score_of_another_prediction_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Own\.outputs: users are scored by what `models`"):

        class Own(FedAvgClient[NoKeys]):
            def outputs(self, models: Models, data: Examples) -> Tensor:
                return super().outputs(models, data) * 2


HEAD = Header("fedrep", "fedrep", 1, ("a", "b"), True, 1, {"model": "linear"}, (3,), 2, 0)
PIECE = RowFile(encoded(HEAD, {"users/w": np.ones((2, 100_000), np.float32)}))


def test_room_is_there_before_it_is_written_to(tmp_path: Path) -> None:
    target = tmp_path / "models" / "fedrep"
    joined(HEAD, [PIECE], target)
    info = target.stat()
    assert RowFile(target).row("users/w", 1).sum() == 100_000
    assert info.st_blocks * 512 >= info.st_size > 800_000


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_models_that_are_put_together_are_not_in_memory_together(tmp_path: Path) -> None:
    pieces = []
    for user in "abcdefgh":
        path = tmp_path / user
        own = replace(HEAD, users=(user,))
        path.write_bytes(encoded(own, {"users/w": np.full((1, 500_000), ord(user), np.float32)}))
        pieces.append(RowFile(path))

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE

    before = mapped()
    joined(replace(HEAD, users=tuple("hgfedcba")), pieces, tmp_path / "whole")
    assert mapped() - before < 4_000_000  # of 16,000,000 twice
    whole = RowFile(tmp_path / "whole").checked().array("users/w")
    assert whole[:, 7].astype(int).tolist() == [ord(user) for user in "hgfedcba"]


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*fedrep'"):
        joined(HEAD, [PIECE], tmp_path / "fedrep")
    assert not list(tmp_path.iterdir())
