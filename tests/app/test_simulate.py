"""`simulate` on data and models that are objects of this process."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from corsage import Config, Ditto, simulate
from corsage.core.configuration.held_objects import held, hold
from corsage.core.errors import ConfigError, DataError, ModelError
from corsage.datasets.dealing.federated import simulated

QUICK: dict[str, Any] = {"num_rounds": 2, "fraction_train": 1.0, "progress": False}
RNG = np.random.default_rng(0)
USERS = [(RNG.random((20, 4), np.float32), np.arange(20) % 3) for _ in range(4)]


class Net(nn.Module):
    """A model of one's own, with a parameter that is nobody else's."""

    def __init__(self, hidden: int = 7) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, hidden), nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(torch.relu(self.body(x))))


def test_what_torch_makes_by_default_in_a_notebook_is_no_matter() -> None:
    names = ["fedrep", "fedproto"]
    usual = simulate(names, USERS, **QUICK)
    torch.set_default_dtype(torch.float64)
    try:
        found = simulate(names, USERS, **QUICK)
        assert torch.get_default_dtype() == torch.float64
        assert [found[n].per_user for n in names] == [usual[n].per_user for n in names]
    finally:
        torch.set_default_dtype(torch.float32)


def test_own_users_and_nothing_on_disk(cache: Path) -> None:
    before = sorted(cache.rglob("*"))
    found = simulate("fedrep,local", USERS, **QUICK)
    assert len(found["fedrep"]) == 4 and set(found["local"].per_user) == {"0", "1", "2", "3"}
    assert sorted(cache.rglob("*")) == before


def test_test_samples_of_ones_own_are_what_users_are_judged_on() -> None:
    """A user whose test labels are all wrong has none right, whatever it learns."""
    x, y = np.eye(4, dtype=np.float32)[np.arange(12) % 3], np.arange(12) % 3
    keys = {**QUICK, "num_rounds": 20, "lr": 1.0, "model": "linear"}
    found = simulate("local", {"right": (x, y, x, y), "wrong": (x, y, x, (y + 1) % 3)}, **keys)
    assert found["local"].per_user == {"right": 1.0, "wrong": 0.0}


def test_the_same_data_as_a_file_give_the_same_numbers(tmp_path: Path) -> None:
    x, y = (np.concatenate(part) for part in zip(*USERS, strict=True))
    users = np.repeat(np.arange(4), 20)
    np.savez(tmp_path / "own.npz", x=x, y=y, user=users)
    ways = [
        simulate("fedrep", x=x, y=y, user=users, **QUICK),
        simulate("fedrep", USERS, **QUICK),
        simulate("fedrep", tmp_path / "own.npz", **QUICK),
        simulate("fedrep", dataset="npz", data_file=str(tmp_path / "own.npz"), **QUICK),
    ]
    assert len({str(found["fedrep"].per_user) for found in ways}) == 1


def test_a_pool_is_dealt_as_a_data_set_is() -> None:
    x, y = (np.concatenate(part) for part in zip(*USERS, strict=True))
    found = simulate("local", (x, y), num_users=5, partition="iid", **QUICK)
    assert len(found["local"]) == 5


def test_strategies_that_are_made_already_get_the_data() -> None:
    ditto = Ditto(num_rounds=2, fraction_train=1.0)
    found = simulate([ditto, "local"], USERS, **QUICK)
    assert len(found["ditto"]) == len(found["local"]) == 4
    assert ditto.progress.round == 2


@pytest.mark.parametrize(
    "model", [Net, Net(), lambda: Net(9), lambda outputs: nn.Linear(4, outputs)]
)
def test_a_model_is_an_object(model: Any) -> None:
    found = simulate("fedrep", USERS, model=model, **QUICK)
    assert len(found["fedrep"]) == 4


def test_the_weights_of_a_module_are_where_all_begin() -> None:
    """And it is not trained itself."""
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = simulate("fedavg", USERS, model=module, lr=0.0, fine_tune_epochs=0, **QUICK)
    ended = found.results["fedavg"].arrays.to_torch_state_dict()
    simulate("fedavg", USERS, model=module, lr=0.5, fine_tune_epochs=0, **QUICK)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) and torch.equal(ended[name], before[name])


@pytest.mark.parametrize("model", [Net, Net(), "mlp"])
def test_every_users_model_is_at_hand(model: Any) -> None:
    """And predicts what the table says, to the last digit."""
    found = simulate("fedrep,fedavg", USERS, model=model, **QUICK)
    assert list(found) == ["fedrep", "fedrep+own", "fedavg", "fedavg+ft", "fedavg+ft-all"]
    gc.collect()
    for row in found.rows.values():
        assert row.evaluate() == row.per_user
        assert row.user("2").predict(USERS[2][0]).shape == (20,)
    assert found["fedrep"].loss.mean > 0 and len(found.table) == 5


def test_two_strategies_of_one_name_have_models_of_their_own() -> None:
    both = simulate(["fedavg", "fedavg"], USERS, **QUICK)
    assert list(both) == [
        "fedavg",
        "fedavg+ft",
        "fedavg+ft-all",
        "fedavg#2",
        "fedavg#2+ft",
        "fedavg#2+ft-all",
    ]
    assert both["fedavg#2+ft"].evaluate() == both["fedavg+ft"].per_user


def test_a_class_that_can_be_imported_is_known_by_its_name() -> None:
    assert Config.parse({"model": Net}).model.model == f"{__name__}:Net"
    assert Config.parse({"model": lambda: Net(3)}).model.model.startswith("object-")


def test_what_is_held_goes_with_who_holds_it() -> None:
    config = Config.parse({"model": Net()})
    again = Config.parse(config.flat())
    name = config.model.model
    del config
    gc.collect()
    assert [one.name for one in again.held] == [name]


def test_an_object_that_has_changed_is_taken_as_it_is_now() -> None:
    """Though the rows of an earlier call still hold it."""
    width, module = 5, Net()

    def network() -> nn.Module:
        return Net(width)

    keys: dict[str, Any] = {**QUICK, "lr": 0.0, "fine_tune_epochs": 0}
    before = [simulate("fedavg", USERS, model=model, **keys) for model in (network, module)]
    width = 6
    nn.init.zeros_(module.head.weight)
    after = [simulate("fedavg", USERS, model=model, **keys) for model in (network, module)]
    weights = [found.results["fedavg"].arrays["head.weight"].numpy() for found in after]
    assert weights[0].shape == (3, 6) and not weights[1].any()
    assert before[0]["fedavg"].evaluate() == before[0]["fedavg"].per_user


def test_a_copy_in_another_process_has_the_same_name() -> None:
    """As Ray sends a client app to its workers."""
    sent = pickle.dumps(one := hold(Net()))
    name = one.name
    del one
    gc.collect()
    assert held(name) is None
    again = pickle.loads(sent)
    assert held(name) is again and isinstance(again.thing, Net)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Net(4).body, r"model=Linear: returns \(3, 4\).*must return \(3, 3\)"),
        (lambda: None, "model=<lambda>: the factory returned NoneType"),
        (nn.Linear(9, 3), r"model=Linear: fails on data of shape \(3, 4\)"),
        (nn.Linear(4, 3).double(), r"model=Linear: weight is float64.*model.float\(\)"),
        ("object-0123", "an object of another process"),
        ([1, 2], "neither a torch.nn.Module nor callable"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(model: Any, why: str) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        simulate("fedavg", USERS, model=model, **QUICK)
    assert "\n" not in str(caught.value)


def test_data_of_another_process_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="dataset=memory: simulate"):
        simulate("local", dataset="memory", **QUICK)
    with pytest.raises(DataError, match="in the memory of another process"):
        simulated(Config.parse({"dataset": "memory", "data-file": "object-1"}).data, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"data": USERS, "dataset": "digits"}, "dataset=digits: data are given too"),
        ({"x": USERS[0][0]}, "x, y: give both"),
        ({"user": "site"}, "user='site': no data are given; of a file it is user_column="),
        ({"data": "own.xlsx"}, "own.xlsx: neither a CSV nor an NPZ file"),
        ({"data": USERS, "partition": "shards", "num_users": 3, "labels": "classes"}, ""),
        ({"data": (USERS[0]), "partition": "natural"}, "the data do not say whose they are"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, Any], why: str) -> None:
    if not why:
        assert simulate("local", **arguments, **QUICK)["local"].users == ["0", "1", "2"]
        return
    with pytest.raises(ConfigError, match=why):
        simulate("local", **arguments, **QUICK)
