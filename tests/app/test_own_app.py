"""An app with data, a model and a training function of its own, under Corsage's strategies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from corsage import LocalGrid, make_client_app
from corsage.core.errors import ConfigError, CorsageError, DataError, NodeError
from corsage.strategies import strategy_class
from corsage.strategies.rounds.results import Result

QUICK: dict[str, Any] = {"num_rounds": 3, "fraction_train": 1.0, "lr": 0.1, "evaluate_every": 1}
SERVED = ("fedavg", "fedprox", "fedrep", "fedper", "lg-fedavg", "fedbabu", "local", "ditto")


class Net(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(torch.relu(self.body(x))))


def arrays(number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(number)
    y = np.arange(24) % 3
    return (np.eye(4, dtype=np.float32)[y] + rng.normal(0, 0.3, (24, 4))).astype(np.float32), y


def own_arrays(context: Context) -> Any:
    x, y = arrays(int(context.node_config["partition-id"]))
    return x[:18], y[:18], x[18:], y[18:]


def own_sets(context: Context) -> Any:
    x, y, *test = map(torch.from_numpy, own_arrays(context))
    return TensorDataset(x, y), TensorDataset(*test)


def own_loaders(context: Context) -> Any:
    train, test = own_sets(context)
    return DataLoader(train, batch_size=10, shuffle=True), DataLoader(test, batch_size=10)


def own_users(context: Context) -> Any:
    number = int(context.node_config["partition-id"])
    return {f"u{2 * number + i}": arrays(2 * number + i) for i in range(2)}


def run(name: str, app: ClientApp, nodes: int = 3, **keys: Any) -> Result:
    strategy = strategy_class(name)({}, **{**QUICK, "model": Net, **keys})
    return strategy.start(LocalGrid(app, nodes))


def train(model: nn.Module, data: Any, config: dict[str, Any]) -> None:
    """An ordinary loop of an ordinary app."""
    loader = data if isinstance(data, DataLoader) else DataLoader(data, 10, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.5)
    for _ in range(config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_users_are_called_by_their_partition_or_as_the_data_say() -> None:
    found = run("fedrep", make_client_app(data=own_arrays, model=Net))
    assert set(found["fedrep"].per_user) == {"0", "1", "2"}
    found = run("fedrep", make_client_app(data=own_users, model=Net))
    assert set(found["fedrep"].per_user) == {f"u{i}" for i in range(6)}


def test_the_form_of_the_data_is_no_matter() -> None:
    found = [
        run("ditto", make_client_app(data=data, model=Net))["ditto"].per_user
        for data in (own_arrays, own_sets, own_loaders)
    ]
    assert found[0] == found[1] == found[2]


def test_a_model_of_the_zoo_needs_no_word() -> None:
    found = run("fedavg", make_client_app(data=own_arrays), model="mlp", fine_tune_epochs=0)
    assert found["fedavg"].users == 3


def test_a_model_that_knows_its_classes_is_taken_at_its_word() -> None:
    """A class that nobody has is no reason to refuse it."""

    def two(context: Context) -> Any:
        x, y = arrays(int(context.node_config["partition-id"]))
        return x[y < 2], y[y < 2]

    assert run("fedrep", make_client_app(data=two, model=Net))["fedrep"].users == 3


WHOLE = {"batch_size": 18, "weight_decay": 0.0, "lr": 0.5, "local_epochs": 3}
"""All of a user's samples are one batch: no order of batches tells two loops apart."""


@pytest.mark.parametrize("name", SERVED)
def test_an_app_trains_by_a_function_of_its_own(name: str) -> None:
    """With the steps of Corsage's SGD it comes to Corsage's models, pulled or not."""
    calls = set()

    def watched(model: Net, data: Any, config: dict[str, Any]) -> None:
        calls.add(
            (config["part"], model.body.weight.requires_grad, model.head.weight.requires_grad)
        )
        assert isinstance(data, TensorDataset)
        train(model, DataLoader(data, batch_size=18), config)

    own = run(name, make_client_app(data=own_sets, model=Net, train=watched), **WHOLE)
    ours = run(name, make_client_app(data=own_sets, model=Net), **WHOLE)
    for mine, row in zip(own.summaries, ours.summaries, strict=True):
        assert mine.loss.mean == pytest.approx(row.loss.mean, abs=1e-5)
        assert mine.per_user == row.per_user
        assert mine.gradient_steps == row.gradient_steps
    assert calls <= {("model", True, True), ("body", True, False), ("head", False, True)}
    assert own[name].loss.mean < 1.0 or name in ("lg-fedavg", "fedbabu")


def test_equal_work_reaches_the_apps_own_loop() -> None:
    """FedRep's 10 + 1 epochs of a user with one batch an epoch: with a budget of 22, 22 steps."""

    def one_batch(model: nn.Module, data: Any, config: dict[str, Any]) -> None:
        train(model, DataLoader(data, batch_size=18), config)

    loop = make_client_app(data=own_sets, model=Net, train=one_batch)
    keys = {"work": "equal", "work_epochs": 22.0, "batch_size": 18, "local_epochs": 1}
    for app in (loop, make_client_app(data=own_sets, model=Net)):
        found = run("fedrep", app, num_rounds=1, head_epochs=10, **keys)
        assert found["fedrep"].gradient_steps == 22


def test_steps_are_not_given_to_a_function_that_goes_by_epochs() -> None:
    app = make_client_app(data=own_sets, model=Net, train=train)
    with pytest.raises(CorsageError, match="local-steps=3: an app's own training goes by epochs"):
        run("fedavg", app, local_steps=3)


def test_what_has_no_optimizer_cannot_be_pulled() -> None:
    def by_hand(model: nn.Module, data: Any) -> None:
        for p in model.parameters():
            p.data += 0.01

    with pytest.raises(Exception, match="pull to another model is added at the steps of a torch"):
        run("ditto", make_client_app(data=own_loaders, model=Net, train=by_hand))


class Client(NumPyClient):
    """As Flower's templates have it."""

    def __init__(self, context: Context) -> None:
        self.net, (self.loader, _) = Net(), own_loaders(context)

    def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
        state = dict(zip(self.net.state_dict(), map(torch.from_numpy, parameters), strict=True))
        self.net.load_state_dict(state)
        train(self.net, self.loader, config)
        return [v.numpy() for v in self.net.state_dict().values()], len(self.loader.dataset), {}


@pytest.mark.parametrize("name", ["fedrep", "ditto", "lg-fedavg"])  # parts, a pull, the whole
def test_a_client_of_flowers_is_served_and_does_what_its_function_does(name: str) -> None:
    """The same loop, as a function and in a client, comes to the same numbers."""

    def client_fn(context: Context) -> Any:
        return Client(context).to_client()

    apps = (
        make_client_app(data=own_loaders, model=Net, train=train),
        make_client_app(data=own_loaders, model=Net, client_fn=Client),
        make_client_app(data=own_loaders, model=Net, client_fn=client_fn),
    )
    found = [run(name, app).json() for app in apps]
    for rows in found:
        for row in rows:
            row.pop("seconds")
    assert found[0] == found[1] == found[2]


def test_corsage_trains_the_same_network_afterwards() -> None:
    """A function that sets gradients to None, or thaws what was frozen, leaves nothing behind."""

    def careless(model: nn.Module, data: Any, config: dict[str, Any]) -> None:
        for p in model.parameters():
            p.requires_grad_(True)
        train(model, data, config)
        model.zero_grad(set_to_none=True)

    plain = make_client_app(data=own_loaders, model=Net)
    before = run("fedrep", plain).json()[0]
    run("fedrep", make_client_app(data=own_loaders, model=Net, train=careless))
    after = run("fedrep", plain).json()[0]
    assert before["per_user"] == after["per_user"] and before["loss"] == after["loss"]


def test_only_what_is_to_be_trained_changes() -> None:
    """Though the function trains all of it."""

    def all_of_it(model: nn.Module, data: Any, config: dict[str, Any]) -> None:
        for p in model.parameters():
            p.data += 1.0

    app = make_client_app(data=own_loaders, model=Net, train=all_of_it)
    strategy = strategy_class("fedbabu")({}, **{**QUICK, "model": Net, "fine_tune_epochs": 0})
    first = strategy.arrays(LocalGrid(app, 3))["body"].numpy()
    found = run("fedbabu", app, fine_tune_epochs=0)
    body = np.concatenate([a.numpy().reshape(-1) for a in found.arrays.values()])
    np.testing.assert_allclose(body, first + 3.0, rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("feddyn", "fedlc", "fedrod", "apfl", "pfedme", "perfedavg", "scaffold", "l2gd", "fedmtl"),
        *("fedem", "fedpac", "gpfl", "fedala", "moon", "feddbe", "fedfomo"),
    ],
)
def test_methods_that_it_cannot_serve_are_refused_in_one_line(name: str) -> None:
    app = make_client_app(data=own_loaders, model=Net, train=train)
    with pytest.raises((NodeError, DataError), match=f"strategy={name}: its steps are more than"):
        run(name, app)
    assert run(name, make_client_app(data=own_loaders, model=Net))[name].users == 3


def bad_name(model: nn.Module, data: Any, speed: float) -> None:
    """What is speed?"""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"data": [1, 2]}, "data= is a function from the node's context"),
        ({"model": Net}, "give data= too"),
        ({"data": own_arrays, "train": bad_name}, r"bad_name\(\): what is speed\?"),
        ({"data": own_arrays, "train": lambda model: None}, "takes no model and data"),
        ({"data": own_arrays, "train": train, "client_fn": Client}, "not both"),
    ],
)
def test_a_bad_app_is_refused_when_it_is_made(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_client_app(**arguments)


def test_the_servers_model_must_be_the_apps() -> None:
    app = make_client_app(data=own_arrays, model=Net)
    with pytest.raises((NodeError, DataError), match=r"model=mlp is not this app's \(.*:Net\)"):
        run("fedrep", app, model="mlp")


def test_a_module_is_the_same_on_both_sides_or_refused() -> None:
    """In one process; elsewhere each side would have begun with weights of its own."""
    module = Net()
    app = make_client_app(data=own_arrays, model=module)
    assert len(run("fedrep", app, model=module)["fedrep"].per_user) == 3
    with pytest.raises((NodeError, DataError), match="an object of each process by itself; give"):
        run("fedrep", app, model=Net())


def test_errors_of_the_apps_own_data_are_one_line() -> None:
    def no_file(context: Context) -> Any:
        raise FileNotFoundError("data/7.csv")

    with pytest.raises((NodeError, DataError), match=r"data/7\.csv") as caught:
        run("fedrep", make_client_app(data=no_file, model=Net))
    assert "\n" not in str(caught.value)


def test_an_apps_own_client_app_is_told_what_to_do() -> None:
    app = ClientApp()

    @app.train()
    def ours(message: Any, context: Context) -> Any:
        return message

    with pytest.raises((NodeError, DataError), match=r"make_client_app\(data=.*docs/library.md"):
        run("fedrep", app)


class OwnDevices(LocalGrid):
    """Nodes that are devices to the app: a server they do not trust, and a folder of their own."""

    def __init__(self, app: ClientApp, folder: Path, **words: Any) -> None:
        super().__init__(app, 3)
        for number, context in enumerate(self.contexts):
            own = {"user": f"d{number}", "state-dir": str(folder / f"s{number}"), "data": "own"}
            context.node_config = {**context.node_config, **own, **words}


def on_devices(
    name: str, app: ClientApp, folder: Path, *, words: Any = None, **keys: Any
) -> Result:
    strategy = strategy_class(name)({}, **{**QUICK, "model": Net, **keys})
    return strategy.start(OwnDevices(app, folder, **(words or {})))


@pytest.mark.parametrize("own", [{}, {"train": train}])
def test_devices_keep_states_and_come_to_the_same(own: dict[str, Any], tmp_path: Path) -> None:
    app = make_client_app(data=own_sets, model=Net, **own)
    found = on_devices("fedrep", app, tmp_path)["fedrep"].per_user
    assert sorted(found) == ["d0", "d1", "d2"]
    assert list((tmp_path / "s0").rglob("*.safetensors"))

    def named(context: Context) -> Any:
        return {f"d{context.node_config['partition-id']}": own_sets(context)}

    simulated = run("fedrep", make_client_app(data=named, model=Net, **own))
    assert found == simulated["fedrep"].per_user


@pytest.mark.parametrize(
    ("words", "keys", "why"),
    [
        ({"max-epochs": 2}, {"head_epochs": 3}, "max-epochs=2"),
        ({"max-parameters": 10}, {}, "allows 10: raise max-parameters"),
        ({"strategies": "fedavg"}, {}, "is not one of this device's"),
        ({}, {"model": "mlp"}, r"model=mlp is not this app's"),
        ({}, {"model": "os:system"}, r"model=os:system is not this app's"),
    ],
)
def test_a_device_does_no_more_than_its_owner_allows(
    words: dict[str, Any], keys: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """A message may ask for anything; what is sent here is what a strange server would send."""
    app = make_client_app(data=own_sets, model=Net, train=train)
    other = strategy_class("fedrep")({}, **{**QUICK, "model": Net, **keys})
    with pytest.raises(CorsageError, match=why):
        other.start(OwnDevices(app, tmp_path, **words))


def test_what_is_in_a_devices_own_error_stays_there(tmp_path: Path) -> None:
    def no_file(context: Context) -> Any:
        raise FileNotFoundError("/home/ann/secret.csv")

    with pytest.raises(CorsageError, match="FileNotFoundError") as caught:
        on_devices("fedrep", make_client_app(data=no_file, model=Net), tmp_path)
    assert "secret" not in str(caught.value)


def test_a_loop_that_fails_costs_its_user_only() -> None:
    def moody(model: nn.Module, data: Any, config: dict[str, Any]) -> None:
        if config["user"] == "1":
            raise ZeroDivisionError("no")
        train(model, DataLoader(data, 10), config)

    found = run(
        "fedavg", make_client_app(data=own_sets, model=Net, train=moody), fine_tune_epochs=0
    )
    assert found["fedavg"].dropped == {"1": 3}


def logged(caplog: pytest.LogCaptureFixture, name: str, app: ClientApp, **keys: Any) -> list[str]:
    """What a server script's log has of a run, at INFO."""
    caplog.clear()
    with caplog.at_level("INFO", "flwr"):
        run(name, app, **keys)
    return [f"{one.levelname} {one.getMessage()}" for one in caplog.records]


def test_a_server_script_is_told_of_every_round(caplog: pytest.LogCaptureFixture) -> None:
    """A line a round, as Flower's FedAvg has it; no warnings, and no keys that nobody set."""
    app = make_client_app(data=own_sets, model=Net, train=train)
    lines = logged(caplog, "fedavg", app, lr=0.5)
    rounds = [line for line in lines if "round " in line]
    assert [line[: len("INFO fedavg: round 1/3: ")] for line in rounds] == [
        f"INFO fedavg: round {number}/3: " for number in (1, 2, 3)
    ]
    assert re.fullmatch(
        r".*: accuracy \d+\.\d ± \d+\.\d %, test loss \d\.\d{3}, 3 users",
        rounds[0],
    )
    ends = [line for line in lines if line.startswith(("INFO fedavg: accuracy", "INFO fedavg+ft"))]
    assert len(ends) == 3 and all("over 3 users" in line for line in ends)
    text = "\n".join(lines)
    assert "lr=0.5" in text and "batch-size" not in text and "momentum" not in text
    assert "are a user's own" not in text and "WARNING" not in text


def test_models_no_better_than_a_guess_are_a_warning_in_a_server_script_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_client_app(data=own_sets, model=Net)
    lines = logged(caplog, "fedavg", app, lr=1e-9, fine_tune_epochs=0, measures="accuracy,log-loss")
    (warned,) = (line for line in lines if line.startswith("WARNING"))
    assert "is no better than the" in warned and "more rounds" in warned
    assert any("log-loss" in line for line in lines if "round 3/3" in line)


def test_a_strategy_that_goes_on_is_told_of_the_rest_once(caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategy_class("fedavg")({}, **{**QUICK, "model": Net})
    grid = LocalGrid(make_client_app(data=own_sets, model=Net), 3)
    strategy.start(grid)
    with caplog.at_level("INFO", "flwr"):
        strategy.start(grid, num_rounds=5)
    rounds = [one.getMessage() for one in caplog.records if "round " in one.getMessage()]
    assert [line.partition(":")[2].partition(":")[0] for line in rounds] == [
        " round 4/5", " round 5/5",
    ]  # fmt: skip
