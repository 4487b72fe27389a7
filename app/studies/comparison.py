"""A study's results: its rows over the seeds, and which of them are told apart."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.output.notes import fitted_to_all
from corsage.app.studies.nested_fits import Ratio, lines, ratios
from corsage.app.studies.over_seeds import Compared, Done, StudyRow, compared, rows_of
from corsage.core.errors import ConfigError
from corsage.core.version import VERSION
from corsage.strategies.effort import as_set

if TYPE_CHECKING:
    from corsage.app.studies.means_table import TableText

Json = dict[str, Any]
CSV_NUMBERS = (
    *("over_samples", "worst10", "gradient_steps", "bytes_up", "bytes_down", "messages"),
    "seconds",
)
"""What a line of the CSV file has of a result besides its measure."""


@dataclass(frozen=True)
class Study:
    """Several runs beside each other.

    Parameters
    ----------
    runs : those that are finished.
    folder : where it is; None for runs that were only put beside each other.
    missing : the runs that have no result, and why.
    """

    runs: Sequence[Done]
    folder: Path | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[StudyRow]:
        """One a strategy and setting."""
        return rows_of(self.runs)

    @cached_property
    def compared(self) -> list[Compared]:
        """The rows beside the best of those on the same users."""
        return compared(self.rows)

    @property
    def likelihood_ratios(self) -> list[Ratio]:
        """Tests of mixed models within wider ones."""
        return ratios(self.runs)

    @property
    def settings(self) -> list[str]:
        """The keys in which runs differ, besides the seed."""
        return list(dict.fromkeys(key for run in self.runs for key in run.settings))

    @property
    def seeds(self) -> list[str]:
        """All seeds."""
        return list(dict.fromkeys(run.seed for run in self.runs))

    def __getitem__(self, label: str) -> StudyRow:
        """A row by its label: `study["fedrep"]`, `study["fedrep lr=0.1"]`."""
        rows = {row.label: row for row in self.rows}
        if label not in rows:
            raise KeyError(f"{label}: no such row. There are: {', '.join(rows)}.")
        return rows[label]

    def __iter__(self) -> Iterator[str]:
        """The labels of the rows."""
        return (row.label for row in self.rows)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def table(self) -> TableText:
        """The table, as the terminal shows it; `table.to_latex()` for a paper."""
        from corsage.app.studies.means_table import TableText

        return TableText.of(self)

    def __repr__(self) -> str:
        """The table: what a notebook shows."""
        return self.table

    def records(self) -> list[Json]:
        """One a run and row, flat."""
        found = []
        for run in self.runs:
            for result in run.results:
                measure = str(result.get("measure", "accuracy"))
                spread = result[measure]
                own = run.settings_of(str(result["strategy"]))
                row: Json = {**own, "seed": run.seed, "strategy": result["strategy"]}
                row |= {"measure": measure, "mean": spread["mean"], "std_over_users": spread["std"]}
                row["last10"] = result.get(f"{measure}_last10")
                row |= {name: result.get(name) for name in CSV_NUMBERS}
                more = result.get("measures") or {}
                row |= {name: values.get("mean") for name, values in more.items()}
                found.append({**row, "folder": str(run.folder)})
        return found

    @property
    def frame(self) -> Any:
        """The records as a pandas frame."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ConfigError(
                "a study's frame: pandas is not installed (pip install pandas); .records() is a "
                "list of dictionaries."
            ) from None
        return pandas.DataFrame(self.records())

    def csv(self) -> str:
        """The records as a CSV file."""
        records, text = self.records(), io.StringIO()
        names = list(dict.fromkeys(name for record in records for name in record))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def json(self) -> Json:
        """As `study.json` has it."""
        return {
            "corsage": VERSION,
            "seeds": self.seeds,
            "rows": [one.json() for one in self.compared],
            "runs": [
                {"name": run.name, "settings": dict(run.settings), "seed": run.seed,
                 "folder": str(run.folder), "failed": dict(run.failed)}
                for run in self.runs
            ],
            "missing": dict(self.missing),
            "likelihood_ratios": [one.json() for one in self.likelihood_ratios],
            "notes": self.notes(),
        }  # fmt: skip

    def notes(self) -> list[str]:
        """Notes that a reader of the table needs."""
        fitted = self._fitted()
        found = [self._over_what(), *(fitted or self._winners()), *self._groups()]
        found += lines(self.runs)
        if not fitted and (chosen := [key for key in self.settings if key not in ("run", "work")]):
            aside = all(run.config.data.validation for run in self.runs)
            data = "validation data" if aside else "test data"
            found.append(
                f"Values of {', '.join(chosen)} are compared on the users' {data}: the one that "
                "comes out best looks better here than it will on new data"
                + (", such as their test data (without validation)." if aside else ".")
            )
        if work := self._work():
            found.append(work)
        for run in self.runs:
            found += [f"{run.name}: {name} failed: {why}" for name, why in run.failed.items()]
        return found + [f"{name} failed: {why}" for name, why in self.missing.items()]

    def _fitted(self) -> list[str]:
        """Runs that held nothing out: no row is better by scores of rows that it was fitted to."""
        names = [run.name for run in self.runs if any(map(fitted_to_all, run.results))]
        if not names:
            return []
        return [
            f"Nothing was held out in {', '.join(names)}: scores are of the rows that models were "
            "fitted to, by which the model that fits more is ahead. They say of no row that it is "
            "best."
        ]

    def _over_what(self) -> str:
        """The seeds and users behind mean and sd."""
        count = len(self.seeds)
        if count == 1:
            return "One seed: intervals are over its users; of another seed they say nothing."
        few = ", which are few: intervals over them are wide" if count < 4 else ""
        return f"Mean ± standard deviation over {count} seeds{few}; intervals are of 95%."

    def _winners(self) -> list[str]:
        """The row of each group that is best, or others from which it is not told apart."""
        found = []
        for best in {id(one.best): one.best for one in self.compared}.values():
            group = [one for one in self.compared if one.best is best and one.row is not best]
            near = [one.row.label for one in group if not (one.difference and one.difference.sure)]
            over = "seeds" if len(best.seeds) > 1 else "users"
            if group and not near:
                found.append(f"Best: {best.label}; over {over} no other row reaches it.")
            elif group:
                found.append(
                    f"No row is best for certain: {best.label} is not told apart over {over} from "
                    f"{', '.join(near)}."
                )
        return found

    def _groups(self) -> list[str]:
        """Data keys that differ between runs: these are not on the same users."""
        names = dict.fromkeys(name for run in self.runs for name in run.data)
        unlike = {
            name: values
            for name in names
            if len(values := list(dict.fromkeys(str(run.data.get(name)) for run in self.runs))) > 1
        }
        if not unlike:
            return []
        said = "; ".join(f"{name}={', '.join(values)}" for name, values in unlike.items())
        return [
            f"Not all runs are on the same users ({said}): rows are compared with those of theirs."
        ]

    def _work(self) -> str:
        """A note on runs that do unequal work."""
        budgets = {run.config.train.work_epochs for run in self.runs}
        works = {run.config.train.work for run in self.runs}
        if works == {"as-set"}:
            sums = {as_set(run.config, n) for run in self.runs for n in run.config.run.strategy}
            said = "Work as set: methods do not all take as many steps; work=equal makes them."
            return said if len(sums) > 1 else ""
        if len(works) > 1:
            return "Work differs between the runs: work=equal in all of them makes it equal."
        if len(budgets) > 1:
            return unequal_budgets(self.runs)
        return ""


def unequal_budgets(runs: Sequence[Done]) -> str:
    """A line on runs of equal work within, but not between them."""
    most = max(run.config.train.work_epochs for run in runs)
    less = [run for run in runs if run.config.train.work_epochs < most]
    names = dict.fromkeys(name for run in less for name in run.config.run.strategy)
    shown = ", ".join(
        f"{epochs:g}" for epochs in sorted({r.config.train.work_epochs for r in runs})
    )
    return (
        f"Work differs between the runs (work-epochs={shown}): {', '.join(names)} again with "
        f"work-epochs={most:g} makes it equal."
    )
