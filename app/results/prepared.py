"""How columns of a table become a model's inputs, where a file of models says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from corsage.app.results.header import Header
from corsage.core.arrays import Array
from corsage.core.errors import CheckpointError


class Preparation(Protocol):
    """What raw cells become, and what a model's numbers become."""

    @property
    def names(self) -> tuple[str, ...]:
        """The raw columns."""

    @property
    def features(self) -> tuple[str, ...]:
        """The model's inputs."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names, if they have any."""

    @property
    def numbers(self) -> bool:
        """Whether labels are numbers."""

    shift: tuple[float, ...]
    scale: tuple[float, ...]

    def json(self) -> dict[str, Any]:
        """What JSON can hold."""

    def inputs(self, columns: Mapping[str, Any] | Array | Sequence[Any]) -> Array:
        """Raw cells as inputs (n, d)."""

    def original(self, values: Array) -> Array:
        """The model's numbers in the label's unit."""

    def linear(self) -> tuple[Array, Array]:
        """(A, a) with A (w, b) + a the coefficients in the original units."""


def preparation_of(head: Header) -> Preparation | None:
    """The preparation that a header names."""
    if head.preparation is None:
        return None
    raise CheckpointError(f"{head.row}: its columns are prepared as a later version does it.")
