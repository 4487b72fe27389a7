"""What users say of curvature, held to what convex losses have."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.strategies.convex_clustering.probing import convex, whole


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
