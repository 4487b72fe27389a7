"""Strategies run from Python, in this process and without files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import Any, Unpack

from flwr.clientapp import ClientApp
from flwr.supercore import log
from rich.console import Console

from corsage.app.client_app import make_client_app
from corsage.app.engines import number_of_nodes
from corsage.app.given import data_of, moved
from corsage.app.local_grid import LocalGrid
from corsage.app.output.progress import Watcher
from corsage.app.output.remarks import Remarks
from corsage.app.output.summary import summary_table
from corsage.app.run.endings import in_a_line
from corsage.core.config import Config
from corsage.core.errors import FOR_ALL, ConfigError
from corsage.core.keys import flatten
from corsage.core.keywords import Keywords
from corsage.core.version import warn_if_untested
from corsage.datasets.dealing.federated import check_users, simulated
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.results import Json, Result, Summary
from corsage.strategies.rounds.work import as_set, with_budget

AnyStrategy = Strategy[Any, Any]
WIDE = 120
"""Columns of the table as text."""
FILES = "it writes no files; the command line does (python run_simulation.py)"
ELSEWHERE = {
    "strategy": "name strategies in the first argument",
    "resume": FILES,
    "run_dir": FILES,
    "checkpoint_every": FILES,
    "keep_checkpoints": FILES,
    "from_round": FILES,
    **dict.fromkeys(("ray_address", "node_cpus", "node_gpus"), "it works in this process"),
}
"""Keys that would do nothing here."""


@dataclass(frozen=True)
class Comparison:
    """The results of strategies that were run one after the other.

    Parameters
    ----------
    results : each strategy's own result, by its name: shared arrays, metrics of each round. A
        second strategy of the same name is `fedrep#2`.
    failed : the errors of those that have no result, by their names. What would have ended every
        strategy, or the only one, is raised instead.
    """

    results: Mapping[str, Result]
    failed: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def summaries(self) -> list[Summary]:
        """The rows of the table."""
        return [summary for result in self.results.values() for summary in result.summaries]

    def __iter__(self) -> Iterator[str]:
        """The names of the rows."""
        return (summary.strategy for summary in self.summaries)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.summaries)

    def __getitem__(self, name: str) -> Summary:
        """The row of that name: `comparison["fedavg+ft"].score.mean`."""
        rows = {summary.strategy: summary for summary in self.summaries}
        if name in self.failed:
            raise KeyError(f"{name} failed: {in_a_line(self.failed[name])}")
        if name not in rows:
            raise KeyError(f"{name}: no such row. There are: {', '.join(rows)}.")
        return rows[name]

    def json(self) -> list[Json]:
        """The rows as the file of a run has them."""
        return [summary.json() for summary in self.summaries]

    def __str__(self) -> str:
        """The table, as the terminal shows it."""
        console = Console(file=io.StringIO(), width=WIDE)
        failed = {name: in_a_line(error) for name, error in self.failed.items()}
        console.print(summary_table(self.json(), failed), crop=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text


def simulate(
    strategies: AnyStrategy | str | Sequence[AnyStrategy | str],
    data: Any = None,
    *,
    x: Any = None,
    y: Any = None,
    user: Any = None,
    label: str | None = None,
    cluster: Any = None,
    progress: bool = True,
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
    >>> found["fedrep"].users
    8
    """
    if progress:
        warn_if_untested()
    several = [strategies] if isinstance(strategies, str | Strategy) else list(strategies)
    columns = {"user": user, "label": label, "cluster": cluster}
    given = data_of(data, (x, y), columns, keys)
    made = [strategy for entry in with_work(several, given.among(keys)) for strategy in entry]
    if not made:
        raise ConfigError("simulate: no strategy is given; name at least one.")
    fresh(made)
    for strategy in several if given.keys else ():
        if isinstance(strategy, Strategy):
            strategy.configure(moved(strategy.config, given), strategy.federation.experiment)
    warn_of_other_users(made)
    app = make_client_app()  # its own: what it prepared goes when it does
    results: dict[str, Result] = {}
    failed: dict[str, Exception] = {}
    for strategy in made:
        count = sum(strategy.name == name.partition("#")[0] for name in (*results, *failed))
        label = f"{strategy.name}#{count + 1}" if count else strategy.name
        try:
            results[label] = renamed(run(strategy, progress, app), strategy.name, label)
        except FOR_ALL:
            raise
        except Exception as error:
            failed[label] = error
            if not results and len(failed) == len(made):
                raise next(iter(failed.values())) from None
            log(WARNING, "%s failed: %s", label, in_a_line(error))
    return Comparison(results, failed)


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
        name = getattr(entry, "__name__", repr(entry))
        raise ConfigError(f"simulate: {name} is no strategy; give a name, or one made: {name}().")
    for key, instead in ELSEWHERE.items():
        if key in keys:
            raise ConfigError(f"{key.replace('_', '-')}: simulate() has no use for it; {instead}.")
    values = {name.replace("_", "-"): value for name, value in keys.items()}
    config = Config.parse({**values, "strategy": entry})
    if config.run.engine != "local":
        raise ConfigError(
            f"engine={config.run.engine}: simulate() works in this process; use the command line "
            "(python run_simulation.py engine=ray ...)."
        )
    return config


def fresh(strategies: list[AnyStrategy]) -> None:
    """Refuse strategies that have run already: their users are gone, and their rounds are done."""
    for place, strategy in enumerate(strategies):
        if strategy.federation.grid is not None or strategy in strategies[:place]:
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


def run(strategy: AnyStrategy, progress: bool, app: ClientApp) -> Result:
    """One strategy on nodes of its own."""
    config = strategy.config
    check_users(simulated(config.data, config.federation.num_users, config.run.seed))
    if progress:
        strategy.callbacks.append(Watcher(strategy.config.run.num_rounds))
    strategy.callbacks.append(Remarks())
    return strategy.start(LocalGrid(app, number_of_nodes(strategy.config)))
