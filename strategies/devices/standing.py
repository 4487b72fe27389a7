"""Nodes that are set aside: they misbehave, or stay silent twice, and rest for growing pauses.

All of it is counted in rounds and kept in the progress of the run, so that a resumed run knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from corsage.core.known_devices import KnownDevices, Standing
from corsage.core.messages.replies import name_users, reading_order

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
