"""A run that is over: its rows by name, and its results and users as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.results.frames import frame, result_rows, user_rows
from corsage.app.results.row import Json, NoModel, Row, unknown_row
from corsage.app.results.rowfile import RowFile
from corsage.core.configuration.config import Config
from corsage.core.errors import CheckpointError, ConfigError
from corsage.core.hurt import hurts

if TYPE_CHECKING:
    from corsage.core.arrays import Arrays
    from corsage.datasets.user_data import FederatedData


class Run:
    """Rows by their names: `run["fedavg+ft"].user("7").predict(x)`.

    Parameters
    ----------
    rows : in the order of the table.
    failed : the strategies that have no result, and why.
    folder : where it is, if it has one.
    config : all of its keys.
    """

    def __init__(
        self,
        rows: Mapping[str, Row],
        failed: Mapping[str, str],
        folder: Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows, self.reasons, self.folder = dict(rows), dict(failed), folder
        self.config = dict(config or {})
        for name, hurt in hurts(self.json()).items():
            self.rows[name].compare(hurt)

    def __getitem__(self, name: str) -> Row:
        """A row of the table."""
        if name not in self.rows:
            raise NoModel(unknown_row(name, self.rows, self.reasons))
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        """The rows' names."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    @property
    def results(self) -> Any:
        """The table, as `table` has it."""
        return self.table

    @property
    def table(self) -> Any:
        """The rows' numbers: a pandas frame if pandas is there, else a list with a dict a row."""
        return frame([line for row in self.rows.values() for line in result_rows(row.numbers)])

    @property
    def users(self) -> Any:
        """Every user of every row, likewise."""
        return frame([line for row in self.rows.values() for line in user_rows(row.numbers)])

    @property
    def failed(self) -> Mapping[str, Any]:
        """The strategies that have no result, and why."""
        return self.reasons

    def json(self) -> list[Json]:
        """The rows as the file of a run has them."""
        return [row.numbers for row in self.rows.values()]

    def __repr__(self) -> str:
        """The table, as the terminal shows it."""
        from corsage.app.output.notes import measures_table
        from corsage.app.output.plain import plain
        from corsage.app.output.summary import summary_table

        more = measures_table(self.json())
        text = plain(summary_table(self.json(), self.reasons), *(("", more) if more else ()))
        return f"{text}\n{self.folder}" if self.folder else text


def load(folder: str | Path) -> Run:
    """A run from its folder, with every model that its table names.

    Parameters
    ----------
    folder : str or Path
        A run folder, of a run that is over: of each strategy that has a result.

    Examples
    --------
    >>> run = corsage.load("runs/2026-11-18_09-11-02_fedrep+fedavg+local")  # doctest: +SKIP
    >>> run["fedrep"].user("7").predict(x)  # doctest: +SKIP
    """
    from corsage.app.run.resuming import read_config

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
        raise CheckpointError(f"{folder}: has no result yet; finish the run: --resume {place}")
    return Run(rows, failed, place, config.flat())


def rows_in(place: Path, config: Config) -> tuple[dict[str, Row], dict[str, str]]:
    """The rows of a run folder, and why strategies have none."""
    from corsage.app.run.endings import read_failure, read_result

    rows, failed, data = {}, {}, partial(data_of, config)
    for name in config.run.strategy:
        found = read_result(place / name, config.run.num_rounds)
        if found is None:
            why = read_failure(place / name) or f"it is not finished; --resume {place}"
            failed[name] = why
            continue
        shared = partial(shared_arrays, place / name)
        for json in found:
            models = partial(models_of, place / name, json["strategy"])
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
    return RowFile(path)


def shared_arrays(folder: Path) -> Arrays:
    """What all users of a strategy share at the end, by the names of parameters."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / "model.safetensors"
    try:
        return dict(load_file(path)) if path.is_file() else {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged ({error}).") from error


def data_of(config: Config) -> FederatedData:
    """The data that a simulation dealt to its users."""
    from corsage.datasets.dealing.federated import simulated

    config.check_simulated()
    return simulated(config.data, config.federation.num_users, config.run.seed)
