"""Whether enough users replied: a round, or an evaluation, of too few fails in one line."""

from __future__ import annotations

from corsage.core.errors import RoundFailed
from corsage.core.replies import Replies, by_cause


def check_trained(number: int, replies: Replies, least: int) -> None:
    """RoundFailed if fewer than the least have trained in a round."""
    if len(replies.users) < least:
        raise RoundFailed(
            f"round {number}: {len(replies.users)} usable replies, min-users={least}. "
            + causes(replies)
        )


def check_evaluated(number: int, replies: Replies, least: int) -> None:
    """RoundFailed if fewer than the least, or than were asked, were evaluated after a round."""
    least = min(least, len(replies.users) + len(replies.dropped))
    if not replies.users:
        raise RoundFailed(f"round {number}: no user could be evaluated. {causes(replies)}")
    if len(replies.users) < least:
        raise RoundFailed(
            f"round {number}: {len(replies.users)} users could be evaluated, "
            f"min-users={least}. {causes(replies)}"
        )


def causes(replies: Replies) -> str:
    """The most frequent causes of what was dropped."""
    return "; ".join(by_cause(replies.dropped)[:3])
