"""The answer at both doors: in this process, and in a run folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.answer.held_out import compared, may_train_on_all, refits
from corsage.app.answer.merged import Json, facts, judged_by, with_scores
from corsage.app.answer.questions import names as named_in
from corsage.app.answer.questions import settled, settled_in_memory, tell
from corsage.app.given import NAMING
from corsage.app.output.answer import recommended
from corsage.app.output.usage import in_a_line
from corsage.app.results.row import Row
from corsage.app.run.endings import HELD_OUT
from corsage.core.configuration.config import AUTOMATIC, Config
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import guarded, write_atomically
from corsage.strategies.rounds.results import Summary

if TYPE_CHECKING:
    from corsage.app.given import Data
    from corsage.app.results.run import Run
    from corsage.app.simulation import Comparison
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.callbacks import Callback


def planned(config: Config, who: str, dropped: Sequence[str]) -> tuple[Config, Json]:
    """The fit to all rows, and what was found before it; the run itself where models stay as it
    trains them.

    `who` is what users are called, `dropped` are columns that are left out.
    """
    how: Json = {"rows": 0, "who": who, "dropped": [*dropped]}
    if not config.data.test_fraction:
        return config, {"how": how, "results": []}
    if not refits(config):
        return config, {"how": {**how, "trained": 0, "again": may_train_on_all(config)}}
    try:
        found = compared(config)
        found["how"] = {**how, **found["how"]}
    except CorsageError as error:  # for want of test rows; else the fit itself will say it
        found = {"how": {**how, "why": in_a_line(error)}, "results": []}
    return replace(config, data=replace(config.data, test_fraction=0.0, validation=0.0)), found


def scored(row: Json, before: Json | None) -> Json:
    """A row with its scores on held-out rows, or a word that there are none."""
    how = (before or {}).get("how", {})
    if "trained" in how:
        tested, trained = (sum(row[name].values()) for name in ("test_sizes", "train_sizes"))
        return {**row, "held_out": {**how, "rows": tested, "trained": trained}}
    for own in (before or {}).get("results", []):
        if own["strategy"] == row["strategy"]:
            return judged_by(row, how, own)
    return {**row, "held_out": {**how, "rows": 0}}


# In this process.


def answer(
    listed: Sequence[Any],
    read: Callable[[Mapping[str, Any]], Data],
    keys: Mapping[str, Any],
    progress: bool,
    callbacks: Sequence[Callback],
    user: Any = None,
) -> Comparison:
    """The strategies that are named, or suit the data, compared and then fitted to all rows.

    `read` gives the data by keys.
    """
    from corsage.app import simulation

    said = named_in(keys, "drop_columns")
    given, keys = settled_in_memory(read, keys)
    words = settled(simulation.kebab_keys(given.among(keys)), progress)
    if not given.held:  # of a file the columns are among its keys
        chosen = {name: value for name, value in words.items() if name.replace("-", "_") in NAMING}
        given = replace(given, keys={**given.keys, **chosen})
    own = {name.replace("-", "_"): value for name, value in words.items()}
    dropped = [*dict.fromkeys([*named_in(keys, "drop_columns"), *named_in(own, "drop_columns")])]
    if progress and given.held:  # of a file it was told
        tell(dropped, said)
    own, names = simulation.decided([*listed], own, progress)
    if listed == [AUTOMATIC] and not float(own.get("test_fraction", 1)):
        names = [str(names[0]).partition(",")[0]]  # nothing is to be compared
    config = simulation.named(",".join(map(str, names)), own)
    refitted, before = planned(config, user if isinstance(user, str) else "", dropped)
    own["test_fraction"] = refitted.data.test_fraction
    made = simulation.prepared(names, given, own, progress=False)  # it was told
    for strategy in made:
        strategy.callbacks.extend(callbacks)
    if not config.data.test_fraction:
        check_one([strategy.name for strategy in made])
    found = simulation.compared(made, progress)
    for error in found.failed.values():
        if isinstance(error, ConfigError):  # a key of it; what is left would be another answer
            raise error
    return answered(found, before)


def fitted(made: Sequence[Strategy[Any, Any]], progress: bool) -> Comparison:
    """A strategy whose users are judged by the rows that they train on, which is said."""
    from corsage.app import simulation

    check_one([strategy.name for strategy in made])
    return answered(simulation.compared([*made], progress), None)


def check_one(names: Sequence[str]) -> None:
    """Refuse to compare strategies on the rows that they are fitted to."""
    if len(names) > 1:
        raise ConfigError(
            f"test-fraction=0: nothing is held out, so that {', '.join(names)} cannot be "
            "compared; name one strategy, or leave test-fraction out."
        )


def answered(found: Comparison, before: Json | None) -> Comparison:
    """Results with the scores that were found before the fit, where nothing was held out in it."""
    if before is None and all(row.users_data().held_out for row in found.rows.values()):
        return found
    rows = {name: rescored(row, before) for name, row in found.rows.items()}
    for result in found.results.values():
        result.summaries = [summary_of(one, rows[one.strategy].numbers) for one in result.summaries]
    whole = type(found)(found.results, rows, found.failed)
    add_facts(whole)
    return whole


def rescored(row: Row, before: Json | None) -> Row:
    """A row with other scores, and the models that it has."""
    numbers = scored(row.numbers, before)
    return row.with_numbers(numbers, partial(summary_of, row=numbers))


def summary_of(summary: Summary, row: Json) -> Summary:
    """A strategy's own object with the scores of its row, if these are of held-out rows."""
    before = row["held_out"]
    return with_scores(summary, row) if before["rows"] and "trained" not in before else summary


def add_facts(run: Run) -> None:
    """Say of the row that is recommended how well it fits."""
    row = run[recommended(run.json())]
    row.numbers["fit"] = facts(row)


# In a run folder.


def begun(config: Config) -> tuple[Config, Path | None]:
    """The fit to all rows, and its new folder with what was found before it."""
    from corsage.app.run.status import new_folder

    column = str(config.flat().get("user-column") or "user")
    dropped = named_in(config.flat(), "drop-columns")
    refitted, before = planned(config, column if column != "user" else "", dropped)
    tested = before["how"]["rows"]
    line = f"compared on {tested:,} held-out rows; now fitted to all" if tested else "fitted to all"
    if "trained" not in before["how"]:
        print(line, file=sys.stderr, flush=True)
    folder = new_folder(Path(config.run.run_dir).expanduser(), "+".join(config.run.strategy))
    guarded(write_atomically, folder / HELD_OUT, json.dumps(before))
    return refitted, folder


def read(file: Path) -> Json:
    """The file of what was found before a fit; nothing if it cannot be read."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def finished(folder: Path) -> None:
    """Add to a folder's file how well its models fit, when they are there."""
    from corsage.app.run.loaded import load

    before, run = read(folder / HELD_OUT), load(folder)
    name = recommended(run.json())
    before["fit"] = {name: facts(run[name])}
    guarded(write_atomically, folder / HELD_OUT, json.dumps(before))


def in_folder(results: Sequence[Any], file: Path) -> list[Json]:
    """The results of a run folder with the scores, and facts, that its file has."""
    before = read(file)
    fit = before.get("fit", {})
    return [
        scored(row, before) | ({"fit": fit[row["strategy"]]} if row["strategy"] in fit else {})
        for row in results
    ]
