"""Who is asked at present, by how the nodes behaved when they were asked before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corsage.core.replies import Replies

if TYPE_CHECKING:
    from corsage.strategies.rounds.federation import Federation


class Turnout:
    """Keeps a federation's attendance.

    Parameters
    ----------
    federation : whose it is.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def rest(self) -> None:
        """Do not ask those whose pause is not over, nor slow ones that are still at work."""
        federation, roster = self.federation, self.federation.roster
        now, conduct, patience = federation.now, federation.conduct, federation.patience
        working, hosted = patience.working(), roster.hosted
        for reply in patience.take_late(query=False):
            node = reply.metadata.src_node_id
            if not reply.has_error() and node not in working:
                conduct.late(hosted(node))
        busy = {user for node in working for user in hosted(node)}
        least = max(federation.config.federation.min_users, federation.least)
        now.resting = conduct.resting(roster.members, now.number, least, busy)

    def go_without(self) -> bool:
        """For the rest of this round, do not ask whom the last turn had no reply of.

        False if that was nobody, or too few would be left.
        """
        now, roster = self.federation.now, self.federation.roster
        resting, now.missing = now.resting | now.missing, set()
        left = len(roster.users) - sum(user in roster.members for user in resting)
        found = resting > now.resting and left >= max(
            self.federation.config.federation.min_users, 1
        )
        now.resting = resting if found else now.resting
        return found

    def judge(self, replies: Replies) -> None:
        """Note how the nodes behaved in a turn; where none replied, it was not theirs to do."""
        federation, now, conduct = self.federation, self.federation.now, self.federation.conduct
        hosted, mark = federation.roster.hosted, federation.reception.mark
        there = set(replies.silent) - federation.disconnected(replies)
        bad = {*replies.silent, *replies.refused}
        now.missing = {user for node in bad for user in hosted(node)}
        if replies.answered or replies.refused:
            for node in there:
                conduct.silent(hosted(node), mark(node), now.number)
        for node in set(replies.refused) - there:
            conduct.refused(hosted(node), mark(node), now.number)
        if federation.progress.standings:
            for node in {*replies.answered} - {*replies.refused} - there:
                conduct.alive(hosted(node))
        conduct.tell()

    def judge_others(self, replies: Replies) -> None:
        """The same of nodes that were asked something else in the turn that was judged last."""
        missing = self.federation.now.missing
        self.judge(replies)
        self.federation.now.missing |= missing

    def set_aside(self) -> list[tuple[str, str]]:
        """Which users' nodes were set aside, which nodes were not let in, and why."""
        refused = self.federation.reception.refusals.causes().items()
        rows = [(f"node {node}", f"not let in: {why}") for node, why in refused]
        return self.federation.conduct.table() + rows
