"""Tables on devices: each agrees on its columns with the others, as nodes of a simulation do."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import simulate
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class
from tests.support.devices import Devices

RNG = np.random.default_rng(1)
USERS = ("ann", "bob", "eve", "joe")
HEADER = ("user", "age", "sex", "label")


def rows() -> list[tuple[Any, ...]]:
    """40 people at each of four sites, of whom some did not say everything."""
    found = []
    for i in range(160):
        age, sex = round(float(RNG.normal(50, 12)), 2), str(RNG.choice(["f", "m"]))
        label = "ill" if age + 10 * (sex == "m") > 55 else "well"
        shown = "" if i % 19 == 4 else age
        found.append((USERS[i % 4], shown, "x" if i == 3 else sex, label))
    return found


ROWS = rows()


def write(path: Path, own: list[tuple[Any, ...]], header: tuple[str, ...] = HEADER) -> str:
    """A file of some rows."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *own])
    return str(path)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    """The keys of a simulation of all."""
    return {
        "dataset": "csv", "data-file": write(folder / "all.csv", ROWS), "partition": "natural",
        "num-users": 0, "num-rounds": 3, "fraction-train": 1.0, "missing": "flag", "hidden": "8",
        "cache-dir": str(folder / "cache"), **more,
    }  # fmt: skip


def deployed(folder: Path, keys: dict[str, Any], own: bool = True) -> tuple[Devices, Any]:
    """Devices that have what the simulation deals, or CSV files of their own."""
    config = Config.parse({**keys, "strategy": "fedavg"})
    devices = Devices(folder, config)
    for place, user in enumerate(USERS):
        node = devices.node_config(place)
        node.pop("num-classes", None)
        if own:
            mine = [row for row in ROWS if row[0] == user]
            node["data"] = write(folder / f"{user}.csv", mine)
    return devices, strategy_class("fedavg")(config)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("scale", ["federated", "user"])
def test_devices_learn_what_the_simulation_does(tmp_path: Path, own: bool, scale: str) -> None:
    keys = settings(tmp_path, scale=scale)
    devices, strategy = deployed(tmp_path, keys, own)
    found = strategy.start(devices).summaries[0]
    wanted = simulate("fedavg", progress=False, **{k.replace("-", "_"): v for k, v in keys.items()})
    assert found.users == 4
    assert found.score.mean == pytest.approx(wanted["fedavg"].score.mean, abs=1e-9)
    assert found.loss.mean == pytest.approx(wanted["fedavg"].loss.mean, rel=1e-6)
    agreed = strategy.job.agreed.preparation
    assert agreed.features == ("age", "age=(missing)", "sex=f", "sex=m", "sex=x")
    assert agreed.classes == ("ill", "well")


def test_a_device_that_shares_no_columns_takes_part(tmp_path: Path) -> None:
    """Its words are nobody's business: the level that it alone has is no input."""
    devices, strategy = deployed(tmp_path, settings(tmp_path))
    devices.node_config(USERS.index("joe"))["share-columns"] = False  # who has the x
    result = strategy.start(devices)
    assert result.summaries[0].users == 4
    assert strategy.job.agreed.preparation.features[2:] == ("sex=f", "sex=m")


def test_a_device_with_other_columns_is_left_out_and_they_are_named(tmp_path: Path) -> None:
    devices, strategy = deployed(tmp_path, settings(tmp_path))
    other = [(*row[:2], 7, row[2], row[3]) for row in ROWS if row[0] == "bob"]
    path = write(tmp_path / "bob.csv", other, ("user", "age", "bmi", "sex", "label"))
    devices.node_config(USERS.index("bob"))["data"] = path
    result = strategy.start(devices)
    assert result.summaries[0].users == 3
    assert any("has bmi besides" in why for _, why in strategy.members.set_aside())


def test_who_comes_later_gets_what_was_agreed_on(tmp_path: Path) -> None:
    devices, strategy = deployed(tmp_path, settings(tmp_path))
    strategy.start(devices)
    reception, roster = strategy.members.reception, strategy.members.roster
    agreed = reception.agreed.preparation
    reception.clear()
    reception.refresh(devices, 10.0, 4, strategy.job.introduction)
    assert roster.users == list(USERS) and reception.agreed.preparation == agreed


def test_the_owner_does_not_choose_the_scale(tmp_path: Path) -> None:
    devices, strategy = deployed(tmp_path, settings(tmp_path))
    devices.node_config(0)["scale"] = "none"
    result = strategy.start(devices)
    assert result.summaries[0].users == 3
