"""The models of the table's rows: what each one's last evaluation tells nodes, and who answered.

An evaluation says which row of the table it is of. The one that the table shows *delivers*: every
user is judged alone, through the function that its loaded model predicts with, and simulated nodes
leave the very models that they judged for the run's own process to put together. Devices keep
theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from corsage.core.configuration.config import Config
from corsage.core.messages.replies import Replies
from corsage.core.messages.wire import DELIVER_OPTION, ROOM_OPTION, ROW_OPTION

AUTO_BYTES = 2**30
"""What the users' models of a row may take where nobody said how much."""
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Delivery:
    """An evaluation whose models the table's row names.

    Parameters
    ----------
    row : of the table.
    round : after which it was.
    tokens : of its messages: what nodes left under others is of no use.
    users : who answered, in the order of the row.
    options : what the evaluation said.
    """

    row: str
    round: int
    tokens: tuple[str, ...]
    users: tuple[str, ...]
    options: Mapping[str, Any]


def row_options(row: str, deliver: bool, config: Config, users: int) -> Mapping[str, Any]:
    """What an evaluation says besides what is asked; 0 users: nobody would take the models."""
    limits = {"auto": AUTO_BYTES // max(users, 1), "all": NO_LIMIT, "none": 0}
    room = {ROOM_OPTION: limits[config.run.keep_models]} if deliver and users else {}
    return {ROW_OPTION: row, DELIVER_OPTION: deliver, **room}


class Deliveries(dict[str, Delivery]):
    """The last delivery of each row."""

    def note(
        self, options: Mapping[str, Any], number: int, tokens: Iterable[str], replies: Replies
    ) -> None:
        """Remember an evaluation after round `number`, if it is one that delivers."""
        if options.get(DELIVER_OPTION):
            row = str(options[ROW_OPTION])
            self[row] = Delivery(row, number, (*tokens,), (*replies.users,), dict(options))
