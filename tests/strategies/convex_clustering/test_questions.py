"""Questions to all users: who is asked, in which order answers come, what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.clients.convex_clustering.convex_clustering import ConvexClusteringClient
from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies
from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from corsage.strategies.convex_clustering.probing import convex, whole
from corsage.strategies.convex_clustering.questions import Questions, in_order
from corsage.strategies.convex_clustering.remote_losses import RemoteUsers
from corsage.strategies.rounds.agreed import check_data
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import played
from tests.support.at_hand import central
from tests.support.federations import Notes, settings
from tests.support.grids import Watched

USERS = [str(number) for number in range(12)]


def federation(grid: LocalGrid | None = None) -> Job:
    """Twelve users that are there, without a strategy."""
    config = settings("convex-clustering")
    found = Job("convex-clustering", config, [Notes()])
    found.join(grid or LocalGrid(app, 3))
    check_data(found)
    return found


def test_rows_are_in_the_order_of_the_users_down_and_up() -> None:
    there = federation()
    x = np.random.default_rng(0).normal(size=(12, 3))
    losses, template = central(), {"gradient": np.zeros(3)}
    order = [11, 0, 5, *range(1, 5), *range(6, 11)]
    users = [USERS[i] for i in order]
    script = Questions(there).ask(users, "gradient", {"x": x[order]}, template)
    replies = played(script, there.members.exchange)
    assert replies.users == users
    at = losses.features.new_tensor(x)
    assert replies.rows["gradient"] == pytest.approx(losses.gradient(at).numpy()[order])
    assert replies.metrics["value"] == pytest.approx(losses.value(at).numpy()[order])


def test_a_question_is_an_exchange_outside_the_rounds() -> None:
    there = federation()
    questions = Questions(there)
    before = there.traffic.wire_messages
    for _ in range(3):
        played(questions.ask(USERS, "facts"), there.members.exchange)
    traffic = there.traffic
    assert there.progress.questions == 3
    assert traffic.wire_messages == before + 3 * 6
    assert (traffic.messages, traffic.bytes_down, traffic.bytes_up) == (0, 0, 0)


def test_mathematics_asks_as_scripts_do() -> None:
    there = federation()
    questions, x = Questions(there), np.ones((12, 3))

    def work(users: RemoteUsers) -> Any:
        losses = users.losses_without(None)
        at = central().features.new_tensor(x)
        first = losses.value(at), losses.gradient(at)  # one point: one question
        return [tensor.numpy() for tensor in (*first, losses.hessian(at))]

    value, gradient, hessian = played(
        questions.about_losses(USERS, 3, work), there.members.exchange
    )
    at, losses = central().features.new_tensor(x), central()
    assert value == pytest.approx(losses.value(at).numpy())
    assert gradient == pytest.approx(losses.gradient(at).numpy())
    assert hessian == pytest.approx(losses.hessian(at).numpy())
    assert there.progress.questions == 2


def test_all_must_answer_unless_some_will_do() -> None:
    there = federation(Watched(12, fails=lambda number, task: number == 4))
    questions = Questions(there)
    with pytest.raises(RoundFailed, match=r"all users must answer about their losses \(facts\)"):
        played(questions.ask(USERS, "facts"), there.members.exchange)
    replies = played(questions.ask(USERS, "facts", strict=False), there.members.exchange)
    assert len(replies.users) == len(replies.metrics["curvature"]) == 11
    assert there.progress.questions == 2
    assert sum(there.progress.dropped.values()) == 2


def test_who_is_gone_is_not_asked_and_the_others_rows_are_theirs() -> None:
    there = federation(Watched(12))
    assert isinstance(there.members.grid, Watched)
    there.members.grid.absent = {7}
    there.refresh()
    (gone,) = set(USERS) - set(there.members.users)
    slope = np.arange(36.0).reshape(12, 3) / 100
    rows, template = {"x": slope}, {"gradient": np.zeros(3)}
    script = Questions(there).ask(USERS, "gradient", rows, template, strict=False)
    replies = played(script, there.members.exchange)
    stay = [i for i in range(12) if USERS[i] != gone]
    assert replies.users == [USERS[i] for i in stay]
    value = central().value(central().features.new_tensor(slope)).numpy()
    assert replies.metrics["value"] == pytest.approx(value[stay])


def test_what_is_not_in_the_table_is_not_answered() -> None:
    """Not even what the client has a method for."""
    there = federation()
    assert callable(ConvexClusteringClient.respond)
    with pytest.raises(RoundFailed, match="no answer to the question 'respond'"):
        played(Questions(there).ask(USERS, "respond"), there.members.exchange)


def test_replies_are_put_in_order() -> None:
    replies = Replies(["a", "b", "c"], rows={"x": np.eye(3)}, metrics={"n": np.arange(3.0)})
    found = in_order(replies, ["c", "z", "a", "b"])
    assert found.users == ["c", "a", "b"]
    assert found.rows["x"].tolist() == np.eye(3)[[2, 0, 1]].tolist()
    assert found.metrics["n"].tolist() == [2, 0, 1]
    assert in_order(replies, ["a", "b", "c"]) is replies


def test_every_question_of_the_server_has_an_answer() -> None:
    strategy = ConvexClustering(settings("convex-clustering", convex_report=True))
    strategy.start(LocalGrid(app, 2))
    assert strategy.progress.questions > 5
    assert strategy.progress.dropped == {}


def test_hessians_of_convex_losses_are_taken_as_they_are() -> None:
    root = np.random.default_rng(0).normal(size=(5, 3, 2))
    sound = root @ root.transpose(0, 2, 1)  # of rank 2
    assert convex(sound) is sound
    assert convex(np.zeros((2, 3, 3))) is not None


def test_what_is_no_hessian_of_a_convex_loss_becomes_the_nearest_that_is() -> None:
    root = np.random.default_rng(1).normal(size=(4, 3, 3))
    given = root + root.transpose(0, 2, 1)
    given[0] = root[0] @ root[0].T
    found = convex(given)
    assert found[0] == pytest.approx(given[0])
    assert (np.linalg.eigvalsh(found) >= -1e-12).all()
    values, vectors = np.linalg.eigh(given[1])
    assert found[1] == pytest.approx((vectors * np.maximum(values, 0)) @ vectors.T)


def test_upper_triangles_are_whole_matrices_again() -> None:
    matrix = np.arange(9.0).reshape(3, 3)
    matrix += matrix.T
    assert np.array_equal(whole(matrix[np.triu_indices(3)][None], 3)[0], matrix)
