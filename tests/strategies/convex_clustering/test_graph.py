"""Whom the penalty joins, and users that come and go: rows and edges stay with their users."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.halves import moved_edges, moved_users
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.rounds.state import restored, stored

ABCD = ["a", "b", "c", "d"]


def path_graph() -> Graph:
    """a - b - c - d with weights 1, 2, 3."""
    pairs, weights = np.array([[0, 1], [1, 2], [2, 3]]), np.array([1.0, 2.0, 3.0])
    return Graph(ABCD, pairs, weights)


def named_edges(graph: Graph) -> dict[str, float]:
    """The weight of each edge, by the users at its ends."""
    users, edges = graph.users, graph.edges
    ends = zip(edges.i, edges.j, edges.w, strict=True)
    return {users[i] + users[j]: float(w) for i, j, w in ends}


def test_all_pairs_have_the_weight_one_and_need_no_arrays() -> None:
    graph = Graph(ABCD)
    assert named_edges(graph) == dict.fromkeys(["ab", "ac", "ad", "bc", "bd", "cd"], 1.0)
    assert graph.edges.complete
    assert stored(graph)[1] == {}
    assert len(Graph([]).edges) == len(Graph(["a"]).edges) == 0


def test_edges_are_made_once_and_are_no_part_of_what_is_stored() -> None:
    graph = path_graph()
    assert graph.edges is graph.edges
    plain, arrays = stored(graph)
    assert set(plain) == {"users", "pairs", "weights"}
    again = restored(Graph, plain, arrays)
    assert named_edges(again) == named_edges(graph) == {"ab": 1, "bc": 2, "cd": 3}


def test_neighbours_are_those_of_the_models() -> None:
    models = np.array([[0.0], [1.0], [10.0], [11.5]])
    graph = Graph.of_neighbours(ABCD, models, 1)
    assert named_edges(graph) == {"ab": 1.0, "cd": 1.0}
    assert graph.edges.pieces == 2
    wanted = Edges.knn(models, 2)
    found = Graph.of_neighbours(ABCD, models, 2).edges
    assert [*zip(found.i, found.j, strict=True)] == [*zip(wanted.i, wanted.j, strict=True)]


def test_rows_are_those_of_the_users_in_any_order() -> None:
    assert path_graph().rows(["d", "a", "x"]).tolist() == [3, 0, -1]


@pytest.mark.parametrize(
    ("users", "wanted"),
    [
        (["a", "b", "d"], {"ab": 1}),  # c goes, and its edges with it
        (["b", "c", "d"], {"bc": 2, "cd": 3}),
        (["d", "c", "b", "a"], {"ba": 1, "cb": 2, "dc": 3}),  # another order
        (
            ["a", "b", "c", "d", "e"],
            {"ab": 1, "bc": 2, "cd": 3, "ae": 1, "be": 1, "ce": 1, "de": 1},
        ),
        (["c", "d", "e"], {"cd": 3, "ce": 1, "de": 1}),
    ],
)
def test_users_come_and_go(users: list[str], wanted: dict[str, float]) -> None:
    """Edges between those that stay keep their weights; a new user is joined to all, with 1."""
    before = path_graph()
    graph, moved = before.with_users(users)
    assert named_edges(graph) == wanted
    assert moved.users.tolist() == [
        before.users.index(u) if u in before.users else -1 for u in users
    ]
    old = {frozenset(name): e for e, name in enumerate(named_edges(before))}
    assert moved.edges.tolist() == [old.get(frozenset(name), -1) for name in named_edges(graph)]
    assert before.users == ABCD


def test_of_all_pairs_there_are_all_pairs_again() -> None:
    graph, moved = Graph(ABCD).with_users(["b", "d", "e"])
    assert graph.pairs is None
    assert graph.edges.complete
    assert moved.users.tolist() == [1, 3, -1]
    assert moved.edges.tolist() == [4, -1, -1]


def test_rows_move_with_their_users_and_new_ones_begin_at_the_mean() -> None:
    values = np.arange(8.0).reshape(4, 2)
    found = moved_users(values, np.array([3, -1, 0]))
    assert found.tolist() == [[6, 7], [3, 4], [0, 1]]
    edges = moved_edges(values, np.array([-1, 2]))
    assert edges.tolist() == [[0, 0], [4, 5]]
    assert edges.flags.f_contiguous


def test_a_graph_is_never_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        path_graph().users = []  # type: ignore[misc]
