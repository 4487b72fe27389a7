"""Nodes that are set aside: they misbehave, or stay silent twice, and rest for growing pauses.

So are devices whose tables are out of all proportion to the others': what they say would spoil what
all agree on, or end the run before it begins. They are left out of that, as long as they are few.
They are asked again later: an honest one may come back then, and is prepared by what the others
agreed on.

All of it is counted in rounds and kept in the progress of the run, so that a resumed run knows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

from corsage.core.errors import line
from corsage.core.known_devices import KnownDevices, Standing
from corsage.core.messages.replies import name_users, reading_order
from corsage.core.tables.column_facts import MOST_COLUMNS, MOST_LEVELS, ColumnFacts, TableFacts

LONGEST_PAUSE = 64
"""Rounds of the longest pause, and good replies that make good the gravest doubt."""


def pause_of(level: int) -> int:
    """Rounds of a pause: each is twice as long as the one before."""
    return min(1 << level, LONGEST_PAUSE)


class Pauses:
    """Nodes that were not let in, and when they are asked again."""

    def __init__(self) -> None:
        self._paused: dict[int, tuple[int, int]] = {}  # how often, and the round that is due

    def begin(self, node: int, number: int) -> None:
        """Leave a node alone after this round."""
        level, _ = self._paused.get(node, (0, 0))
        self._paused[node] = level + 1, number + pause_of(level)

    def end(self, node: int) -> None:
        """It has mended its ways."""
        self._paused.pop(node, None)

    def due(self, node: int, number: int) -> bool:
        """True if a node is to be asked now."""
        return number >= self._paused.get(node, (0, number))[1]

    def among(self, nodes: Collection[int]) -> list[int]:
        """Those of the nodes that were not let in before."""
        return [node for node in nodes if node in self._paused]


class Conduct:
    """Notes how nodes behave, and says which users are to be asked.

    Parameters
    ----------
    known : the standings that the run remembers, by user.
    note : told of every node that is set aside.
    """

    def __init__(self, known: KnownDevices, note: Callable[[str], None]) -> None:
        self._known, self._note = known, note
        self._told: dict[str, list[str]] = {}

    def resting(
        self, users: Collection[str], number: int, least: int, busy: Collection[str] = ()
    ) -> frozenset[str]:
        """Users not to ask in a round; if too few were left, those come back whose pause ends.

        Those that are `busy` are not asked either. Only who has a standing is looked at: `users`
        may be a million, of whom one can ask whether somebody is among them.
        """
        book = self._known.standings
        aside = [u for u in busy if u in users]
        aside += [u for u, own in book.items() if own.until >= number and u in users]
        aside = list(dict.fromkeys(aside))
        aside.sort(key=lambda u: (book[u].until if u in book else number, reading_order(u)))
        missing = max(least - (len(users) - len(aside)), 0)
        return frozenset(aside[missing:])

    def doubtful(self, users: Collection[str]) -> list[str]:
        """Users who were silent, and have not made good for it: nobody waits for them."""
        found = [user for user, own in self._known.standings.items() if own.doubt and user in users]
        return sorted(found, key=reading_order)

    def came(self, users: Iterable[str], key: str) -> None:
        """A node introduced itself: one that is new has not been silent yet."""
        book = self._known.standings
        for user in users:
            if user in book and book[user].key != key:
                book[user].key, book[user].doubt, book[user].until = key, 0, 0

    def alive(self, users: Iterable[str]) -> None:
        """A reply in time; those that make good for all doubts make the next pause shorter."""
        book = self._known.standings
        for user in users if book else ():
            if user in book:
                standing = book[user]
                standing.until, standing.doubt = 0, max(standing.doubt - 1, 0)
                standing.level //= 1 if standing.doubt else 2

    def late(self, users: Iterable[str]) -> None:
        """All that it was asked is answered, though too late: it lives, and is slow."""
        book = self._known.standings
        for user in users if book else ():
            if user in book:
                book[user].until = book[user].doubt = 0

    def silent(self, users: Sequence[str], key: str, number: int) -> None:
        """A node that is there has not replied: it rests for this round.

        If it was in doubt already, it is set aside.
        """
        again = bool(self.doubtful(set(users)))
        for standing in self._of(users, key):
            standing.silent += 1
            standing.doubt = min(standing.doubt + 2 * standing.silent, LONGEST_PAUSE)
            standing.until = max(standing.until, number)
        if again:
            self._set_aside(users, number, "no reply in time, and not for the first time")

    def refused(self, users: Sequence[str], key: str, number: int) -> None:
        """A node's reply was not what it had to be."""
        for standing in self._of(users, key):
            standing.refused += 1
        self._set_aside(users, number, "its reply was refused")

    def tell(self) -> None:
        """Name those that were set aside, one line a cause, however many they are."""
        told, self._told = self._told, {}
        for why, users in told.items():
            self._note(f"{name_users(sorted(users, key=reading_order))} {why}")

    def table(self) -> list[tuple[str, str]]:
        """Lines on nodes that did not reply as they had to, and what came of it."""
        groups: dict[tuple[str, str], list[str]] = {}
        for user, standing in sorted(
            self._known.standings.items(), key=lambda i: reading_order(i[0])
        ):
            groups.setdefault((standing.key, _in_words(standing)), []).append(user)
        return [(_few(users), told) for (_, told), users in groups.items()]

    def _of(self, users: Iterable[str], key: str) -> list[Standing]:
        book = self._known.standings
        self.came(users, key)
        return [book.setdefault(user, Standing(key)) for user in users]

    def _set_aside(self, users: Sequence[str], number: int, why: str) -> None:
        for user in users:
            standing = self._known.standings[user]
            if standing.until > number:  # in one round it is set aside once
                continue
            pause = pause_of(standing.level)
            standing.level, standing.until = standing.level + 1, number + pause
            standing.pauses, standing.doubt = standing.pauses + pause, max(standing.doubt, 1)
            told = f"set aside for {pause} round{'s' * (pause > 1)}: {why}"
            self._told.setdefault(told, []).append(user)


def _in_words(standing: Standing) -> str:
    """A standing in words."""
    counts: Mapping[str, int] = {
        "no reply in time": standing.silent,
        "a reply refused": standing.refused,
    }
    causes = [f"{what} {_times(count)}" for what, count in counts.items() if count]
    rounds = f"{standing.pauses} round{'s' * (standing.pauses > 1)}"
    return ", ".join(causes) + (f"; set aside for {rounds}" if standing.pauses else "")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _few(users: list[str]) -> str:
    more = f" and {len(users) - 5} more" if len(users) > 5 else ""
    return f"{'user' if len(users) == 1 else 'users'} {', '.join(users[:5])}{more}"


OUTLYING_TIMES = 1e6
"""Numbers so many times as large as those of most nodes are of another unit, or of none."""
Tables = Mapping[int, TableFacts]


def outlying(tables: Tables) -> dict[int, str]:
    """The nodes to be left out, and why: fewer than half of those with the usual columns."""
    names = Counter(frozenset(table.names) for table in tables.values())
    usual = max(names, key=names.__getitem__, default=frozenset())
    alike = {node: table for node, table in tables.items() if frozenset(table.names) == usual}
    found = far_off(alike)
    found |= wordy({node: table for node, table in alike.items() if node not in found})
    return found if 2 * len(found) < len(alike) else {}


def far_off(tables: Tables) -> dict[int, str]:
    """Those whose numbers are far larger than those of most."""
    whys: dict[int, str] = {}
    for name, said in by_column(tables).items():
        sizes = {node: size(column) for node, column in said.items() if column.moments.count}
        usual = median(sizes.values()) if sizes else 0.0
        for node in [node for node in sizes if usual and sizes[node] > OUTLYING_TIMES * usual]:
            why = f"has numbers of the size {sizes[node]:.3g}, the others' {usual:.3g}"
            whys.setdefault(node, f"its column {line(repr(name), 60)} {why}")
    return whys


def size(column: ColumnFacts) -> float:
    """The size of a column's numbers."""
    return max(abs(column.moments.mean), column.moments.std)


def wordy(tables: Tables) -> dict[int, str]:
    """Those without whose words all the others' are not too many for a model."""
    words = {node: set(words_of(table)) for node, table in tables.items()}
    counts = Counter(word for mine in words.values() for word in mine)
    rare = {node: sum(2 * counts[w] <= len(words) for w in mine) for node, mine in words.items()}
    whys: dict[int, str] = {}
    for node in sorted(words, key=lambda node: -rare[node]):
        if not too_many(tables, {w for n, mine in words.items() if n not in whys for w in mine}):
            break
        whys[node] = (
            f"it has {rare[node]:,} words that few others have, and all together are more than "
            f"{MOST_LEVELS:,} in a column"
        )
    return whys


def words_of(table: TableFacts) -> Iterator[tuple[str, str]]:
    """Every word of a table, with its column."""
    for column in (table.label, *table.columns):
        yield from ((column.name, level) for level in column.levels)


def too_many(tables: Tables, words: set[tuple[str, str]]) -> bool:
    """True if a column has too many words, one for gaps among them, or all too many inputs."""
    most = max(Counter(column for column, _ in words).values(), default=0)
    columns = len(next(iter(tables.values())).columns)
    return most >= MOST_LEVELS or len(words) + 2 * columns > MOST_COLUMNS


def by_column(tables: Tables) -> dict[str, dict[int, ColumnFacts]]:
    """The nodes' facts of each column, the label among them."""
    columns: dict[str, dict[int, ColumnFacts]] = {}
    for node, table in tables.items():
        for column in (table.label, *table.columns):
            columns.setdefault(column.name, {})[node] = column
    return columns
