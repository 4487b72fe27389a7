"""The description of a run in its folder, and the keys that may be others when it is resumed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from corsage.app.results.known_models import check_model
from corsage.app.run.checkpoint import found, opened
from corsage.core.configuration.config import Config
from corsage.core.configuration.known_keys import idle_keys
from corsage.core.errors import CannotResume, CheckpointError
from corsage.core.files import sealed, unsealed
from corsage.core.keys import Value
from corsage.core.registry import ALGORITHMS
from corsage.strategies.rounds.ledger import Ledger

OF_ONE_CALL: dict[str, Value] = {"resume": "", "from-round": -1}
"""Keys that say how to go on, and not what the run is."""
FREE = {
    *OF_ONE_CALL,
    "strategy",
    "num-rounds",
    "engine",
    "num-nodes",
    "run-dir",
    "cache-dir",
    "ray-address",
    "node-timeout",
    "round-timeout",
    "patience",
    "quorum",
    "evaluate-with-training",
    "node-cpus",
    "node-gpus",
    "device",
    "torch-threads",
    "checkpoint-every",
    "keep-checkpoints",
    "keep-models",
    "log-to",
    "study-workers",
}
"""Keys that may change when a run is resumed: they do not change a strategy's numbers."""


FORGOTTEN_MARK = "forgotten"
"""What stands in `config.json` of a run that has forgotten users."""
EMPTY_FOLDER = "no config.json in it: no run has begun there; start a new run"
"""What is wrong with another folder, and with that of a run that was killed before it began."""


def description(run: str, version: str, config: Config) -> dict[str, Any]:
    """The content of `config.json`."""
    return {"corsage": version, "run": run, "config": {**config.flat(), **OF_ONE_CALL}}


def marks(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Further entries of `config.json`: that users were forgotten."""
    return {FORGOTTEN_MARK: True} if stored.get(FORGOTTEN_MARK) else {}


def read_config(folder: Path) -> dict[str, Any]:
    """The content of `config.json`; made anew from a checkpoint if that file is damaged."""
    try:
        stored = unsealed(folder / "config.json")
        if isinstance(stored.get("run"), str) and isinstance(stored.get("config"), dict):
            return stored
    except FileNotFoundError:
        if not folder.is_dir() or not begun(folder):
            raise not_a_run(folder, EMPTY_FOLDER) from None
    except OSError as error:
        raise not_a_run(folder, f"config.json cannot be read: {error.strerror}") from error
    except ValueError:
        pass
    for body in heads(folder):
        config, run = body.get("config"), body["identity"].get("run")
        if config and isinstance(config, dict) and isinstance(run, str):
            return {"corsage": body.get("corsage", ""), "run": run, "config": config}
    why = "config.json is damaged, and no checkpoint is there to make it anew"
    raise not_a_run(folder, f"{why}: there is nothing to go on with, start a new run")


def not_a_run(folder: Path, why: str) -> CannotResume:
    """The error for a folder that no run can be read from."""
    if not folder.exists():
        return CannotResume(f"{folder}: there is no such folder.")
    return CannotResume(f"{folder}: not a run folder of Corsage ({why}).")


def heads(folder: Path) -> Iterable[dict[str, Any]]:
    """The heads of all readable checkpoints in a run folder, the one written last first."""
    paths = [path for name in begun(folder) for _, path in found(folder / name)]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            yield opened(path)[0]
        except CheckpointError:
            continue


def begun(folder: Path) -> list[str]:
    """The strategies that have a checkpoint in a run folder."""
    return [name for name in ALGORITHMS if found(folder / name)]


def resumed(values: Mapping[str, Value]) -> dict[str, Any]:
    """With `resume`, the keys of the run to be finished, unless they are given anew.

    Flower passes all keys, the defaults among them: a key counts as given if it is not the default.
    """
    if not values.get("resume"):
        return dict(values)
    defaults = Config.parse().flat()
    given = {k: v for k, v in values.items() if v != defaults.get(k)}
    stored: dict[str, Any] = read_config(Path(str(values["resume"])).expanduser())["config"]
    check_model(str(stored.get("model", "")))
    return {**stored, **given}


def known_data(folder: Path) -> Ledger:
    """The marks of the run's data, as any strategy's newest readable checkpoint has them."""
    for name in begun(folder):
        for _, path in reversed(found(folder / name)):
            with suppress(CheckpointError, KeyError, ValueError):
                return Ledger.of("built/data", opened(path)[1])
    return Ledger()


def check_same(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Value]) -> None:
    """Refuse to resume under settings that would change the numbers of what has begun."""
    defaults = Config.parse().flat()
    kept = {key for key in now if key not in FREE} - idle_keys(begun(folder))
    differ = [k for k in sorted(kept) if stored.get(k, defaults.get(k)) != now[k]]
    if differ:
        changes = ", ".join(f"{k} was {stored.get(k)!r}, now {now[k]!r}" for k in differ[:3])
        raise CannotResume(f"{folder}: cannot be resumed with another config: {changes}.")


def check_rounds(folder: Path, strategies: Iterable[str], rounds: int) -> None:
    """Refuse fewer rounds than a strategy has done."""
    for name in strategies:
        done = [number for number, _ in found(folder / name)]
        if done and done[-1] > rounds:
            raise CannotResume(
                f"{folder}: num-rounds={rounds}: {name} has done {done[-1]}; go back with "
                f"--from-round {rounds}, if that is kept (it has {spelled(done)}), or start a "
                "new run."
            )


def spelled(numbers: Collection[int]) -> str:
    """Numbers as words: 3, 4 and 5."""
    *most, last = map(str, sorted(numbers))
    return f"{', '.join(most)} and {last}" if most else last


def identity(run: str, name: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a strategy's numbers in a run depend on: its checkpoints have them."""
    kept = {key for key in flat if key not in FREE} - idle_keys([name])
    return {"run": run, "strategy": name, **{key: flat[key] for key in sorted(kept)}}


def text_of(stored: Mapping[str, Any]) -> str:
    """The text of `config.json`."""
    own = {key: stored[key] for key in ("corsage", "run", "config")}
    return sealed({**own, **marks(stored)})


def is_text_of(path: Path, text: str) -> bool:
    """True if a file holds this text already."""
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False
