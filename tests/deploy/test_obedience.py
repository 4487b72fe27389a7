"""What a device does of what a server asks: all that is honest, within its limits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from corsage.app.nodes import reporting
from corsage.benchmarks.device.messages import honest
from corsage.benchmarks.device.target import Target
from corsage.core.errors import DataError
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from tests.support.devices import Devices
from tests.support.federations import KINDS, federate, reference, settings

FULL: dict[str, dict[str, Any]] = {
    "mixed-model": {"mixed_aside": "never", "known_gamma": "auto", "known_lambda": "auto"},
    "async-al2sgd": {"known_p0": 0.2, "known_p": 0.3, "num_rounds": 4},
    "convex-clustering": {"convex_solver": "pdmm"},
    "lg-fedavg": {"lg_fedavg_warmup_rounds": 1},
    "fedrep-exact": {"fedrep_exact_centre": "clusters", "fedrep_exact_loss": "multinomial"},
}
"""Keys with which more is said than otherwise; devices set users aside by default."""


@pytest.mark.parametrize("name", sorted({*KINDS, *FULL, "fedrod"}))
def test_an_honest_run_is_what_the_simulation_is(name: str, tmp_path: Path) -> None:
    """Nothing that a strategy sends is refused: new users, fine-tuning and questions included."""
    keys = {"num_rounds": 2, "new_users": 0.3, "fine_tune_epochs": 1, **FULL.get(name, {})}
    devices = Devices(tmp_path, settings(name, **keys), **{"max-threads": 1})
    _, result, notes = federate(name, grid=devices, **keys)
    _, simulated, _ = reference(name, **keys)
    assert all("a user that lies is not set aside" in note for note in notes.notes)
    for own, other in zip(result.summaries, simulated.summaries, strict=True):
        assert own.strategy == other.strategy and own.users == other.users
        assert own.score.mean == pytest.approx(other.score.mean, abs=1e-6)
        assert own.loss.mean == pytest.approx(other.loss.mean, rel=1e-4)


class Sterner(Callback):
    """After the first round the owner of one device allows less."""

    def __init__(self, devices: Devices) -> None:
        self.own = devices.node_config(3)

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        self.own["max-epochs"] = 2


def test_who_exceeds_a_limit_is_told_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each: at the device, and at the server, which goes on with the others."""
    lines: list[str] = []
    monkeypatch.setattr(reporting, "log", lambda level, text, *own: lines.append(text % own))
    keys = {"local_epochs": 3, "num_rounds": 2, "fraction_train": 1.0}
    keys["evaluate_with_training"] = False  # the first round ends before the second one begins
    devices = Devices(tmp_path, settings("fedavg", **keys))
    _, _, notes = federate("fedavg", callbacks=[Sterner(devices)], grid=devices, **keys)
    why = "local-epochs=3 is more than this device allows (max-epochs=2)"
    assert f"user 3 is dropped: train: {why}" in notes.notes
    assert [line for line in lines if why in line]


def test_a_folder_of_states_that_is_gone_is_made_again(target: Target) -> None:
    """A process that stays sees it as one that has just begun does."""
    assert not target.ask(honest("fedrep", "train").message()).has_error()
    for kind in ("query", "train"):
        shutil.rmtree(target.state)
        assert not target.ask(honest("fedrep", kind).message()).has_error()
        assert target.state.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_said_in_the_devices_own_log(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And to the server; what was there before stays, and it goes on when there is room."""
    lines: list[str] = []
    monkeypatch.setattr(reporting, "log", lambda level, text, *own: lines.append(text % own))

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        reply = target.ask(honest("fedrep", "train").message())
    assert reply.error.reason == "keep: No space left on device"
    why = "its state cannot be kept in state-dir: No space left on device"
    assert lines == [f"user {user}: {why}" for user in ("ann", "bob")]
    assert not list(target.state.rglob("*.safetensors"))
    assert not target.ask(honest("fedrep", "train").message()).has_error()


def test_the_log_of_a_device_is_no_terminal_of_a_server(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(reporting, "log", lambda level, text, *own: lines.append(text % own))
    draft = honest("fedavg", "train")
    draft.settings["keys"]["frozen"] = "\x1b[2J"
    assert target.ask(draft.message()).has_error()
    assert lines and all(line.isprintable() for line in lines)


def test_a_model_beyond_a_limit_is_never_sent(tmp_path: Path) -> None:
    """The server says which limit and which key; the others train, or the run does not begin."""
    keys = {"num_rounds": 1, "fraction_train": 1.0}
    devices = Devices(tmp_path, settings("fedavg", **keys))
    devices.node_config(3)["max-parameters"] = 100
    _, result, notes = federate("fedavg", grid=devices, **keys)
    why = (
        "and the node allows 100: raise max-parameters in its node config, or take a smaller model"
    )
    assert any("is left out: the model has" in line and why in line for line in notes.notes)
    assert "3" not in result.json()[0]["per_user"] and len(result.json()[0]["per_user"]) > 2
    for place in range(len(devices.contexts)):
        devices.node_config(place)["max-parameters"] = 100
    with pytest.raises(DataError, match="the node allows 100: raise max-parameters"):
        federate("fedavg", grid=devices, **keys)


def test_who_could_never_take_part_says_so_at_the_start(target: Target) -> None:
    target.context.node_config |= {"max-epochs": 1, "user": "ann"}
    draft = honest("fedavg", "query")
    draft.settings["keys"]["local-epochs"] = 2
    said = target.ask(draft.message()).error.reason
    assert said == "user ann: local-epochs=2 is more than this device allows (max-epochs=1)"


def test_a_second_run_of_another_algorithm_finds_no_state_of_the_first(tmp_path: Path) -> None:
    """What one algorithm never sends is what another one sends: `local` keeps a whole model."""
    target = Target(tmp_path)
    alone, spy = honest("local", "train"), honest("fedmtl", "train")
    assert not target.ask(alone.message()).has_error()
    spy.settings["experiment"] = alone.settings["experiment"]
    spy.settings["keys"]["local-epochs"] = 0
    spy.config["round"], spy.config["versions"] = 2, [1, 1]
    reply = target.ask(spy.message())
    config: Any = reply.content["config"]
    assert config["lost"] == ["ann", "bob"] and not config.get("users")
