"""What a device keeps of its model: a whole predictor, for when the server is off."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.inference import predict
from corsage.app.inference.source import models_in
from corsage.app.nodes.device import with_row
from corsage.app.results.row import NoModel
from corsage.app.run.loaded import load
from corsage.app.run.run_folder import RunFolder
from corsage.app.states.state_dir import experiments, remove
from corsage.app.states.state_files import PREDICTORS, Files, predictors
from corsage.core.errors import Refused
from corsage.core.files import write_atomically
from tests.support.devices import Devices
from tests.support.federations import federate, settings

KEYS: dict[str, Any] = {"num_rounds": 2, "new_users": 0.3, "fine_tune_epochs": 1}


@pytest.mark.parametrize("name", ["fedrep", "fedavg", "ifca", "async-l2gd"])
def test_a_device_keeps_what_it_was_judged_by(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every row, and only its owner can read it: the same as what was reported."""
    devices = Devices(tmp_path, settings(name, **KEYS))
    _, result, _ = federate(name, grid=devices, **KEYS)
    for summary in result.summaries:
        for user, reported in summary.per_user.items():
            model = models_in(str(tmp_path / f"state-{user}"), summary.strategy).user(user)
            file = np.load(tmp_path / f"{user}.npz")
            place = devices.node_config(list_of(devices).index(user))
            assert place["user"] == user and len(model.predict(file["x"])) == len(file["label"])
            right = share_right(model, user, devices)
            assert right == reported
    state = tmp_path / f"state-{user}"
    files = [*state.glob("*/*/model-*.safetensors")]
    assert files and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    gone = files[0].with_name("model-gone.safetensors")  # by a message that comes meanwhile
    gone.symlink_to(state / "nowhere")
    assert predict.run([str(state), str(tmp_path / f"{user}.npz")]) == 0
    gone.unlink()
    assert capsys.readouterr().out.startswith("prediction\n")
    (found,) = experiments(state)
    remove(found.folder)
    assert not found.folder.exists()


def list_of(devices: Devices) -> list[str]:
    count = len(list(devices.get_node_ids()))
    return [str(devices.node_config(place)["user"]) for place in range(count)]


def share_right(model: Any, user: str, devices: Devices) -> float:
    """The share of right answers on the device's own test samples."""
    from corsage.app.nodes.node import _device
    from corsage.core.configuration.config import Config

    own = devices.node_config(list_of(devices).index(user))
    data = _device(dict(own), Config.parse().device_data, 0).data[user]
    labels = model.predict(data.x_test)
    return float(np.mean(labels == data.y_test))


def test_the_old_one_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Files(tmp_path, "fedrep-x")
    place.put("fedrep", "", 0, "7", b"old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("corsage.app.states.state_files.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        place.put("fedrep", "", 0, "7", b"new")
    monkeypatch.setattr("corsage.app.states.state_files.write_atomically", write_atomically)
    (file,) = predictors(place.folder / "7")
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize(
    "row", ["fedavg", "fedrep+../x", "fedrep/../../x", "fedrep+ft+ft", "fedrep+", "fedrep+FT"]
)
def test_a_server_cannot_name_other_files(row: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not one of fedrep's"):
        with_row({"row": row}, "fedrep")


def test_a_server_cannot_fill_the_disk_with_rows(tmp_path: Path) -> None:
    place = Files(tmp_path, "fedrep-x")
    for letter in "abcdefghijk":
        place.put(f"fedrep+{letter}", "", 0, "7", b"x")
    assert len(predictors(place.folder / "7")) == PREDICTORS
    with pytest.raises(ValueError, match="cannot be part"):
        place.put("../fedrep", "", 0, "7", b"x")


HELD = {"fedavg": True, "cfl": True, "ifca": True, "fedrep": False, "mixed-model": False}


@pytest.mark.parametrize("name", list(HELD))
def test_a_server_has_what_it_sends_and_says_what_it_has_not(name: str, tmp_path: Path) -> None:
    """Of a deployed run: whole models that the server holds are those of the devices."""
    config = settings(name, strategy=name, run_dir=str(tmp_path / "runs"), num_rounds=2)
    devices = Devices(tmp_path, config)
    with RunFolder.open(config) as run:
        run.strategy(name).start(devices)
    row = load(run.folder)[name]
    with pytest.raises(NoModel, match="test data are on their devices"):
        row.evaluate()
    if not HELD[name]:
        with pytest.raises(NoModel, match="user 3 is on its device, or a part of it is: corsage"):
            row.user("3")
        assert "what all share" in row.new_user().start
        return
    for user in row.users:
        other = models_in(str(tmp_path / f"state-{user}"), name).user(user)
        assert np.array_equal(row.user(user).flat, other.flat)
