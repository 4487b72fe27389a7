"""Strategies run from Python, in this process and without files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import WARNING
from typing import Any, Unpack, cast

from flwr.clientapp import ClientApp
from flwr.supercore import log

from corsage.app.automatic import chosen
from corsage.app.client_app import make_client_app
from corsage.app.engines import number_of_nodes
from corsage.app.given import Data, data_of, moved
from corsage.app.local_grid import LocalGrid
from corsage.app.output.notebook import calm_log, in_float32
from corsage.app.output.progress import is_tty, watcher
from corsage.app.output.remarks import Remarks
from corsage.app.output.usage import in_a_line
from corsage.app.results.known_models import allow
from corsage.app.results.row import Row
from corsage.app.results.rowfile import RowFile
from corsage.app.results.run import Run
from corsage.app.run.model_files import models_in_memory
from corsage.core.configuration.command_line import exampled
from corsage.core.configuration.config import AUTOMATIC, Config
from corsage.core.configuration.keywords import Keywords
from corsage.core.errors import FOR_ALL, CheckpointError, ConfigError
from corsage.core.keys import flatten, kebab
from corsage.core.messages.encoding import decode
from corsage.core.registry import attached
from corsage.core.version import warn_if_untested
from corsage.datasets.dealing.federated import check_users, simulated
from corsage.datasets.user_data import FederatedData
from corsage.strategies import strategy_class
from corsage.strategies.effort import as_set, with_budget
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Result, Summary

AnyStrategy = Strategy[Any, Any]
NO_FILES = "it writes no files; the command line does (python run_simulation.py)"
KEYS_ELSEWHERE = {
    "strategy": "name strategies in the first argument",
    "resume": NO_FILES,
    "run_dir": NO_FILES,
    "checkpoint_every": NO_FILES,
    "keep_checkpoints": NO_FILES,
    "from_round": NO_FILES,
    "log_to": "give callbacks=[...], such as TensorBoard(FOLDER) of corsage.app.tracking",
    **dict.fromkeys(("ray_address", "node_cpus", "node_gpus"), "it works in this process"),
}
"""Keys that would do nothing here."""


class Comparison(Run):
    """The results of strategies that were run one after the other.

    A row has every user's model, as one of `corsage.load` has: `found["fedavg+ft"].user("7")`.

    Parameters
    ----------
    results : each strategy's own result, by its name: shared arrays, metrics of each round. A
        second strategy of the same name is `fedrep#2`.
    rows : the rows of the table.
    failed : the errors of those that have no result, by their names. What would have ended every
        strategy, or the only one, is raised instead.
    """

    def __init__(
        self,
        results: Mapping[str, Result],
        rows: Mapping[str, Row],
        failed: Mapping[str, Exception],
    ) -> None:
        super().__init__(rows, {name: in_a_line(error) for name, error in failed.items()})
        self._results, self._failed = dict(results), dict(failed)

    @property
    def results(self) -> dict[str, Result]:
        """Each strategy's own result; `table` is the frame."""
        return self._results

    @property
    def failed(self) -> dict[str, Exception]:
        """The errors of the strategies that have no result."""
        return self._failed

    @property
    def summaries(self) -> list[Summary]:
        """The rows of the table."""
        return [summary for result in self._results.values() for summary in result.summaries]

    def __str__(self) -> str:
        """The table, as the terminal shows it."""
        return repr(self) + "\n"


def simulate(  # noqa: PLR0913 (data in every form that people have them in)
    strategies: AnyStrategy | str | Sequence[AnyStrategy | str],
    data: Any = None,
    *,
    x: Any = None,
    y: Any = None,
    user: Any = None,
    label: str | None = None,
    cluster: Any = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **keys: Unpack[Keywords],
) -> Comparison:
    """Run strategies in this process, one after the other, and write no files.

    Parameters
    ----------
    strategies : AnyStrategy or str, or several
        Names (`"fedrep"`, `"fedrep,fedavg"`), which are run under `keys` and do equal work
        (`work`), or strategies as they are: `simulate([FedRep(num_users=20), "local"],
        num_users=20)`.
    data : optional
        Each user's own samples, a list or `{user: samples}`; samples are `(x, y)`,
        `(x, y, x_test, y_test)`, a torch Dataset or DataLoader, a Hugging Face Dataset, or two of
        these for training and testing. Or a partitioner of flwr-datasets. Or all samples in one: a
        pandas frame, a Hugging Face Dataset, `(x, y)`, the path of a CSV or NPZ file. Without it
        the key `dataset` says which.
    x, y : arrays, optional
        All samples, in the place of `data`.
    user, cluster : optional
        Whose each sample is, and that user's known cluster: the name of a column, or an array.
        Without a user, samples are dealt as `partition` says. Of data that are given user by user,
        `cluster` is `{user: cluster}`.
    label : str, optional
        The column of the label; `feature_columns` are those of the input, if not all others are.
    progress : bool
        Show a line of progress.
    callbacks : sequence of Callback
        Are called around every round of each strategy, beside those that it has already.
    **keys
        Keys with `_` for `-`, for the strategies that are named: `num_rounds=20`. `model` may be a
        torch module, whose weights are where all begin, or a class or function that makes one.

    Returns
    -------
    Comparison
        All results; printed, it is the table. A strategy that fails does not end the others: it is
        among `failed`. If all of them fail, the first one's error is raised.

    Examples
    --------
    >>> from corsage import simulate
    >>> found = simulate("fedrep,local", num_rounds=2, num_users=8, progress=False)
    >>> len(found["fedrep"].users)
    8
    """
    with calm_log(watched=is_tty(sys.stderr)), in_float32():
        if progress:
            warn_if_untested()
        columns = {"user": user, "label": label, "cluster": cluster}
        read = partial(data_of, data, (x, y), columns)
        several = isinstance(strategies, Sequence) and not isinstance(strategies, str)
        listed: list[Any] = [*cast(Sequence[Any], strategies)] if several else [strategies]
        if listed == [AUTOMATIC]:
            answer: Comparison
            answer = attached("answer").answer(listed, read, keys, progress, callbacks, user)
            return answer
        given = read(keys)
        made = prepared(listed, given, keys, progress)
        for strategy in made:
            strategy.callbacks.extend(callbacks)
        if not all(strategy.config.data.test_fraction for strategy in made):
            answer = attached("answer").fitted(made, progress)
            return answer
        return compared(made, progress)


def prepared(
    several: list[AnyStrategy | str], given: Data, keys: Mapping[str, Any], progress: bool
) -> list[AnyStrategy]:
    """The strategies, on the data that are given."""
    filled = {} if given.keys else exemplify(several, progress)
    own, several = decided(several, {**filled, **given.among(keys)}, progress)
    made = [strategy for entry in with_work(several, own) for strategy in entry]
    if not made:
        raise ConfigError("simulate: no strategy is given; name at least one.")
    fresh(made)
    for strategy in several if given.keys else ():
        if isinstance(strategy, Strategy):
            strategy.configure(moved(strategy.config, given), strategy.job.experiment)
    warn_of_other_users(made)
    return made


def exemplify(several: Sequence[AnyStrategy | str], progress: bool) -> dict[str, Any]:
    """Objects that nobody told of data have the example of the first one; returns its keys."""
    found: dict[str, Any] = {}
    for strategy in several:
        if not isinstance(strategy, Strategy) or strategy.keywords is None or is_begun(strategy):
            continue
        own = kebab_keys(strategy.keywords)
        values, line = exampled({**found, **own, "strategy": strategy.name})
        if progress and line:
            print(line, file=sys.stderr)
        if values.keys() - own.keys() - {"strategy"}:
            strategy.configure(Config.parse(values), strategy.job.experiment)
        found = found or {k: v for k, v in values.items() if k not in own and k != "strategy"}
    return {key.replace("-", "_"): value for key, value in found.items()}


def is_begun(strategy: AnyStrategy) -> bool:
    """True if a strategy has met its users."""
    return strategy.members.grid is not None


def compared(made: list[AnyStrategy], progress: bool) -> Comparison:
    """Strategies run one after the other; one that fails does not end the others."""
    app = make_client_app()  # its own: what it prepared goes when it does
    results: dict[str, Result] = {}
    rows: dict[str, Row] = {}
    failed: dict[str, Exception] = {}
    for strategy in made:
        count = sum(strategy.name == name.partition("#")[0] for name in (*results, *failed))
        label = f"{strategy.name}#{count + 1}" if count else strategy.name
        try:
            names = [one.name for one in made] if strategy is made[0] else []
            found, models = run(strategy, progress, app, names)
            results[label] = renamed(found, strategy.name, label)
            rows |= rows_of(strategy, results[label], models)
        except FOR_ALL:
            raise
        except Exception as error:
            failed[label] = error
            if not results and len(failed) == len(made):
                raise next(iter(failed.values())) from None
            log(WARNING, "%s failed: %s", label, in_a_line(error))
    compared = Comparison(results, rows, failed)
    for result in results.values():
        result.summaries = [replace(one, hurt=rows[one.strategy].hurt) for one in result.summaries]
    return compared


def decided(
    several: list[AnyStrategy | str], keys: dict[str, Any], progress: bool
) -> tuple[dict[str, Any], list[AnyStrategy | str]]:
    """The keys and the strategies; in the place of "auto" those that suit the data."""
    named = [one for one in several if isinstance(one, str)]
    if not named:
        return keys, several
    values = kebab_keys(keys)
    words = {"strategy": ",".join(named)}
    automatic = several == [AUTOMATIC]
    found, line = chosen({**values, **words}) if automatic else exampled({**values, **words})
    if progress and line:
        print(line, file=sys.stderr)
    strategy = found.pop("strategy")
    found |= {"strategy": keys["strategy"]} if "strategy" in keys else {}  # refused later
    own = {name.replace("-", "_"): value for name, value in found.items()}
    return own, [strategy] if automatic else several


def with_work(
    several: Sequence[AnyStrategy | str], keys: Mapping[str, Any]
) -> list[list[AnyStrategy]]:
    """The strategies of each entry: those that are named do the same work as all others.

    Objects have the keys that they were made with.
    """
    entries = [entry if isinstance(entry, Strategy) else named(entry, keys) for entry in several]
    there = [e.epochs(e.config.train, e.keys) for e in entries if isinstance(e, Strategy)]
    for config in (entry for entry in entries if isinstance(entry, Config)):
        there += [as_set(config, name) for name in config.run.strategy]
    return [[e] if isinstance(e, Strategy) else made(with_budget(e, there)) for e in entries]


def made(config: Config) -> list[AnyStrategy]:
    """All strategies that a configuration names."""
    return [strategy_class(name)(config) for name in config.run.strategy]


def named(entry: AnyStrategy | str, keys: Mapping[str, Any]) -> Config:
    """The configuration of strategies that are named, under the keys."""
    if not isinstance(entry, str):
        made_one = f"one made: {entry.__name__}()" if isinstance(entry, type) else "FedRep(...)"
        shown = getattr(entry, "__name__", repr(entry))
        raise ConfigError(f"simulate: {shown:.60} is no strategy; give a name, or {made_one}.")
    for key, instead in KEYS_ELSEWHERE.items():
        if key in keys:
            raise ConfigError(f"{key.replace('_', '-')}: simulate() has no use for it; {instead}.")
    values = kebab_keys(keys)
    config = Config.parse({**values, "strategy": entry})
    if config.run.engine != "local":
        raise ConfigError(
            f"engine={config.run.engine}: simulate() runs users in its own thread (engine=local); "
            f"use the command line (python run_simulation.py engine={config.run.engine} ...)."
        )
    return config


def kebab_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as keys."""
    return {kebab(name): value for name, value in keys.items()}


def fresh(strategies: list[AnyStrategy]) -> None:
    """Refuse strategies that have run already: their users are gone, and their rounds are done."""
    for place, strategy in enumerate(strategies):
        if is_begun(strategy) or strategy in strategies[:place]:
            raise ConfigError(
                f"{strategy.name}: this object has run already, or is given twice; make another "
                f"for another run: {type(strategy).__name__}(...)."
            )


def warn_of_other_users(strategies: list[AnyStrategy]) -> None:
    """Say which keys of users and data differ between strategies that are to be compared."""
    first, *others = [
        flatten(c.data)
        | {"partition": c.data.dealing}
        | flatten(c.new)
        | {"num-users": c.federation.num_users, "seed": c.run.seed}
        for c in (strategy.config for strategy in strategies)
    ]
    for strategy, keys in zip(strategies[1:], others, strict=True):
        if first["dataset"] != keys["dataset"]:
            raise ConfigError(
                f"{strategies[0].name} is on dataset={first['dataset']}, {strategy.name} on "
                f"dataset={keys['dataset']}: give data for both, or both the same dataset."
            )
        unlike = [key for key in {**first, **keys} if first.get(key) != keys.get(key)]
        if unlike:
            said = ", ".join(f"{key}={keys.get(key)} ({first.get(key)})" for key in unlike)
            log(
                WARNING, "%s is not on the users of %s: %s", strategy.name, strategies[0].name, said
            )


def renamed(result: Result, name: str, label: str) -> Result:
    """A result whose rows are called by a label."""
    result.summaries = [
        replace(summary, strategy=label + summary.strategy.removeprefix(name))
        for summary in result.summaries
    ]
    return result


def rows_of(
    strategy: AnyStrategy, result: Result, models: Sequence[RowFile | None]
) -> dict[str, Row]:
    """The rows of a result, each with its models."""
    config = strategy.config
    data = partial(data_again, config)
    shared = partial(decode, result.arrays)
    return {
        summary.strategy: Row(
            summary.json(), partial(there, summary.strategy, file), data, shared, summary
        )
        for summary, file in zip(result.summaries, models, strict=True)
    }


def data_again(config: Config) -> FederatedData:
    """A run's own data, which are there as long as its configuration is."""
    return simulated(config.data, config.federation.num_users, config.run.seed)


def there(row: str, file: RowFile | None) -> RowFile:
    """The models of a row."""
    if file is None:
        raise CheckpointError(f"{row}: its models were not kept.")
    return file


def run(
    strategy: AnyStrategy, progress: bool, app: ClientApp, strategies: list[str]
) -> tuple[Result, list[RowFile | None]]:
    """One strategy on nodes of its own, and the models of each of its rows.

    Parameters
    ----------
    strategies : all that are compared, by name, for the first of them.
    """
    config = strategy.config
    check_users(simulated(config.data, config.federation.num_users, config.run.seed))
    if progress:
        strategy.callbacks.append(watcher(strategy.config))
    strategy.callbacks.append(Remarks(strategies))
    strategy.job.collects = True
    grid = LocalGrid(app, number_of_nodes(strategy.config))
    allow([config.model.model])  # this program has named it
    result = strategy.start(grid)
    models = models_in_memory(strategy, grid.contexts)
    return result, [models.get(summary.strategy) for summary in result.summaries]
