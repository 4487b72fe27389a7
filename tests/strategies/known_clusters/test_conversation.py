"""Conversations with clusters: none waits for another, and what fails is left out for now."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from corsage.core.errors import RoundFailed
from corsage.core.messages.encoding import decode
from tests.support.federations import federate
from tests.support.grids import At, Watched
from tests.support.known_users import HIERARCHICAL, Seen, far, users_of, written

TIES = {"known_gamma": "1.5", "known_lambda": "0.8"}
KEYS: dict[str, Any] = {**HIERARCHICAL, **TIES, "known_p0": 0.1, "known_p": 0.3}
METHODS = ["async-l2gd", "async-al2sgd"]
ENOUGH = {**KEYS, "samples_per_user": 20, "num_rounds": 50, "known_p0": 0.02, "known_p": 0.1}
"""Enough samples for strong convexity, and enough rounds to come to the minimiser."""
APART = {**{str(i): 1.5 for i in range(11)}, "11": 1.6}
"""gamma by user: one of them differs, so all are told apart."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


class Slow(Watched):
    """Users of cluster 0 answer only when nobody else has anything to do."""

    def __init__(self) -> None:
        super().__init__(12)
        self.log: list[str] = []
        self.released: list[int] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note which clusters are spoken to."""
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train":
                self.log.append(f"to {self.number(message) // 4}")
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The others first."""
        quick = [m for m in self._queue if self.number(m) >= 4]
        if quick:
            self._queue.remove(quick[0])
            self._queue.appendleft(quick[0])
        found = list(super().pull_messages(message_ids))
        for reply in found:
            node = self._contexts[reply.metadata.src_node_id].node_id
            if reply.metadata.message_type == "train":
                self.log.append(f"from {node // 4}")
        return found


@pytest.mark.parametrize("name", METHODS)
def test_a_cluster_does_not_wait_for_a_slow_one(name: str) -> None:
    """While users of cluster 0 keep their first answers back, the others walk on to the end of the
    round; those of cluster 0 then walk alone; and it changes nothing."""
    keys = {**KEYS, "known_p0": 0.03, "known_p": 0.5, "al2sgd_rho": 0.001, "num_rounds": 4}
    slow = Slow()
    last = At(4, slow.log.clear)
    _, result, _ = federate(name, grid=slow, callbacks=[last], **keys)
    _, wanted, _ = federate(name, nodes=12, **keys)
    assert result.json()[0]["per_user"] == wanted.json()[0]["per_user"]
    log = slow.log[slow.log.index("to 0") :]
    while_waiting = log[: log.index("from 0")]
    trips = {j: while_waiting.count(f"to {j}") // 4 for j in range(3)}
    assert trips == {0: 1, 1: 8, 2: 9}
    assert all(while_waiting.count(f"from {j}") == 4 * trips[j] for j in (1, 2))


@pytest.mark.parametrize("gamma", ["1.5", APART], ids=["even", "told apart"])
@pytest.mark.parametrize("name", METHODS)
def test_a_user_that_fails_in_the_middle_is_left_out_and_comes_back(
    name: str, gamma: Any, tmp_path: Any
) -> None:
    """Its cluster goes on in the same round; in the next one it is asked again and answers."""
    hit: list[int] = []

    def fails(number: int, task: Any) -> bool:
        due = number == 5 and len(grid.training("5")) == 4 and not hit
        hit.extend([task.round] if due else [])
        return due

    grid = Watched(12, fails)
    text = gamma if isinstance(gamma, str) else written(tmp_path, gamma)
    keys = {**KEYS, "known_gamma": text, "num_rounds": 4}
    strategy, result, notes = federate(name, grid=grid, **keys)
    assert strategy.progress.dropped == {"5": 1}
    assert notes.notes == ["user 5 is dropped: boom"]
    (tick,) = hit
    later = [task.round for _, task in grid.training("5")]
    assert max(later) > tick
    assert [t for t in later if t <= tick] == [
        task.round for _, task in grid.training("6") if task.round <= tick
    ]
    assert max(task.round for _, task in grid.training("6")) == max(later)
    assert len(result.json()[0]["per_user"]) == 12
    assert strategy.progress.versions["5"] == max(later)


def test_a_user_without_its_model_begins_at_the_centre() -> None:
    grid = Watched(12)
    keys = {**KEYS, "num_rounds": 4}
    strategy, _, notes = federate(
        "async-l2gd", grid=grid, callbacks=[At(3, lambda: grid.forget(7))], **keys
    )
    assert notes.notes and all("user 7" in note and "starts anew" in note for note in notes.notes)
    lost = [task.versions[0] for _, task in grid.training("7")]
    again = max(i for i, version in enumerate(lost) if version == 0)
    assert again > 1  # it was asked anew after its first time
    message, _ = grid.training("7")[again]
    rows = decode(message.content["rows"])  # type: ignore[arg-type]
    assert rows["factor"][0] == 0 and np.abs(rows["shift"][0]).max() > 0
    assert "7" in strategy.progress.versions


@pytest.mark.parametrize("name", [*METHODS, "mixed-model"])
def test_if_nobody_answers_the_round_has_failed(name: str) -> None:
    grid = Watched(3, lambda number, task: task.round > 2)
    with pytest.raises(RoundFailed, match=r"0 users gave a usable reply.*boom"):
        federate(name, grid=grid, **{**KEYS, "loss": "huber", "num_rounds": 9})


@pytest.mark.parametrize("nodes", [3, 4], ids=["a new cluster", "users of known clusters"])
@pytest.mark.parametrize("name", ["async-al2sgd", "mixed-model"])
def test_users_that_come_later_count_as_those_of_the_beginning(
    name: str, nodes: int, seen: Seen, tmp_path: Any
) -> None:
    """The models in the end are the minimiser for all users, whenever they came."""
    keys = {**ENOUGH, "loss": "huber" if name == "mixed-model" else "squared", "huber_delta": 1.5}
    grid = Watched(nodes, absent=[2] if nodes == 3 else [1])
    _, result, found = seen.run(name, grid=grid, callbacks=[At(4, grid.absent.clear)], **keys)
    assert len(result.json()[0]["per_user"]) == 12
    _, _, wanted = seen.run("mixed-model", **keys)
    users = users_of(name, **keys)
    assert far(users.rows(found), users.rows(wanted)) < 1e-7


@pytest.mark.parametrize("name", ["async-al2sgd", "mixed-model"])
def test_users_that_leave_no_longer_count(name: str, seen: Seen) -> None:
    """They are one of cluster 0, all that cluster 1 has but two, and most of cluster 2."""
    keys = {**ENOUGH, "loss": "huber" if name == "mixed-model" else "squared", "huber_delta": 1.5}
    gone, runs = [1, 3], []
    for begin, then in (([], gone), (gone, gone)):
        grid = Watched(4, absent=begin)
        leave = At(4, partial(grid.absent.update, then))
        runs.append(seen.run(name, grid=grid, callbacks=[leave], **keys)[2])
    assert set(runs[1]) == {"0", "1", "2", "6", "7", "8"}
    for user, model in runs[1].items():
        assert far(runs[0][user], model) < 1e-7
