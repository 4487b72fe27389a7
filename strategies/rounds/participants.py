"""Who takes part in training, who comes only after, and who is asked at present."""

from __future__ import annotations

from dataclasses import dataclass, field

from corsage.core.config import Config
from corsage.core.seeding import generator, some_of
from corsage.strategies.rounds.roster import Roster


@dataclass
class Attendance:
    """Who is asked at present.

    Parameters
    ----------
    number : the round that is under way, or was last.
    resting : the users that are set aside.
    missing : the users of nodes that did not reply as they had to when they were last asked.
    """

    number: int = 0
    resting: frozenset[str] = frozenset()
    missing: set[str] = field(default_factory=set)


@dataclass
class Sorted:
    """Who takes part, of all that are there.

    Parameters
    ----------
    of, out : the list that it was found from, who rests and who was left out.
    users, new : who trains, and who comes only after.
    sample : who is evaluated after a round; empty until somebody asks.
    """

    of: list[str]
    out: tuple[frozenset[str], frozenset[str]]
    users: list[str]
    new: list[str]
    sample: list[str] = field(default_factory=list)


class Participants:
    """The users of a roster, sorted by the part that they take.

    Parameters
    ----------
    config, roster : who is drawn, of whom.
    now : who is set aside.

    Attributes
    ----------
    left_out : who did not answer a question that is for all.
    """

    def __init__(self, config: Config, roster: Roster, now: Attendance) -> None:
        self.config, self.roster, self.now = config, roster, now
        self.left_out: set[str] = set()
        self._sorted: Sorted | None = None

    @property
    def users(self) -> list[str]:
        """The users that take part in training; nobody is to change the list."""
        return self._sorted_out().users

    @property
    def new_users(self) -> list[str]:
        """The users that come only after training: a share by seed, a known cluster, or both."""
        return self._sorted_out().new

    @property
    def sample(self) -> list[str]:
        """The users who are evaluated after a round: all of them, or so many drawn by the seed."""
        found = self._sorted_out()
        if not found.sample:
            count, users = self.config.run.evaluate_users, found.users
            rng = generator(self.config.run.seed, "evaluated users")
            few = count and len(users) > count
            found.sample = (
                [users[i] for i in some_of(rng, len(users), count)] if few else found.users
            )
        return found.sample

    def _sorted_out(self) -> Sorted:
        """Who takes part and who comes after, found again when somebody came, left or rests."""
        everybody, out = self.roster.users, (self.now.resting, frozenset(self.left_out))
        if self._sorted is None or self._sorted.of is not everybody or self._sorted.out != out:
            there = [u for u in everybody if u not in out[0]] if out[0] else everybody
            new = [user for user in there if self._is_new(user)] if self.config.new.wanted else []
            others = {*new, *out[1]}
            users = [user for user in there if user not in others] if others else there
            self._sorted = Sorted(everybody, out, users, new)
        return self._sorted

    def _is_new(self, user: str) -> bool:
        """Whether a user comes only after training."""
        keys, own = self.config.new, self.roster.members[user]
        drawn = generator(self.config.run.seed, "new user", user).random() < keys.new_users
        return own.cluster == (keys.new_cluster or None) or bool(drawn)
