"""A run folder read again: `corsage.load`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corsage.app.results.known_models import allow
from corsage.app.results.row import Row, users_of
from corsage.app.results.rowfile import RowFile
from corsage.app.results.run import Run
from corsage.app.run.endings import read_result, without_result
from corsage.app.run.resuming import read_config
from corsage.core.configuration.config import Config
from corsage.core.errors import CheckpointError, ConfigError, OtherData
from corsage.core.registry import attachment

if TYPE_CHECKING:
    from corsage.core.arrays import Arrays
    from corsage.datasets.user_data import FederatedData


def load(folder: str | Path, models: Iterable[str] = ()) -> Run:
    """A run from its folder, with every model that its table names.

    Parameters
    ----------
    folder : str or Path
        A run folder, of a run that is over: of each strategy that has a result.
    models : iterable of str
        Code of models' own, `package.module:factory`, that may be imported though this account has
        not trained it.

    Examples
    --------
    >>> run = corsage.load("runs/2026-11-18_09-11-02_fedrep+fedavg+local")  # doctest: +SKIP
    >>> run["fedrep"].user("7").predict(x)  # doctest: +SKIP
    """
    allow(models)
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder.")
    stored = read_config(place)
    try:
        config = Config.parse(stored["config"])
    except ConfigError as error:
        raise CheckpointError(
            f"{folder}: written by Corsage {stored.get('corsage')}, whose keys are others: {error}"
        ) from error
    rows, failed = rows_in(place, config)
    if not rows:
        name, why = next(iter(failed.items()))
        raise CheckpointError(f"{folder}: {name}: {why}")
    return Run(rows, failed, place, config.flat())


def rows_in(place: Path, config: Config) -> tuple[dict[str, Row], dict[str, str]]:
    """The rows of a run folder, and why strategies have none."""
    rows, failed = {}, {}
    for name in config.run.strategy:
        found = read_result(place / name, config.run.num_rounds)
        if found is None:
            failed[name] = without_result(place / name, config.run.num_rounds)
            continue
        shared = partial(shared_arrays, place / name)
        for json in found:
            models = partial(models_of, place / name, json["strategy"])
            # The mark is of all who were fitted; who was judged may be others.
            users = [*json.get("train_sizes", ())] or users_of(dict(json))
            data = partial(data_of, config, place, users, json.get("data", ""))
            rows[json["strategy"]] = Row(dict(json), models, data, shared)
    return rows, failed


def models_of(folder: Path, row: str) -> RowFile:
    """The models of a row in a strategy's folder."""
    path = folder / "models" / f"{row}.safetensors"
    if not path.is_file():
        raise CheckpointError(
            f"{row}: its models are not in {folder.parent}: the run is of an earlier version, or "
            "its users are devices, which keep theirs (corsage predict STATE_DIR FILE there)."
        )
    return RowFile(path).checked()


def shared_arrays(folder: Path) -> Arrays:
    """The arrays that all users of a strategy share at the end, by names of parameters."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / "model.safetensors"
    try:
        return dict(load_file(path)) if path.is_file() else {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged ({error}).") from error


def data_of(config: Config, place: Path, users: list[str], mark: str) -> FederatedData:
    """The data that a simulation dealt to its users; OtherData if they are others by now."""
    from corsage.datasets.dealing.federated import simulated

    config.check_simulated()
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    same = attachment("same data") if mark else None
    known = [user for user in users if user in data.index]
    if same and mark != same.mark_of(dict(zip(known, same.marks(data, known), strict=True)), users):
        raise OtherData(f"{place}: the data are not those that the run was made of, by their hash.")
    return data
