"""A run that is over: its rows by name, and its results and users as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.results.frames import frame, result_rows, user_rows
from corsage.app.results.row import Json, NoModel, Row, unknown_row
from corsage.core.pairs.hurt import hurts

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corsage.app.results.user_model import UserModel


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
        """The number of rows."""
        return len(self.rows)

    @property
    def recommended(self) -> str:
        """The row to use: the mixed model, or what is better by more than noise."""
        from corsage.app.output.answer import recommended

        return recommended(self.json())

    def user(self, user: str | int) -> UserModel:
        """A user's own model, of the row that is recommended."""
        return self[self.recommended].user(user)

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
        from corsage.app.output import answer
        from corsage.app.output.notes import measures_table
        from corsage.app.output.summary import plain, summary_table

        more = measures_table(self.json())
        lead = answer.lines(self.json())
        table = summary_table(self.json(), self.reasons, answer.UNTOLD if lead else ())
        own: list[RenderableType] = [*answer.tables(self.json()), ""] if lead else []
        text = "\n".join([*lead, plain(*own, table, *(("", more) if more else ()))])
        return f"{text}\n{self.folder}" if self.folder else text
