"""Raw samples made what a model takes, by the preparation that its file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.app.results.header import Header
from corsage.core.arrays import Array, PerChannel, along_channels
from corsage.core.errors import CheckpointError, DataError
from corsage.core.tables.column_facts import BadColumns
from corsage.core.tables.preparation import Preparation

__all__ = ["Preparation", "preparation_of"]


def preparation_of(head: Header) -> Preparation | None:
    """The preparation that a header names."""
    if head.preparation is None:
        return None
    try:
        agreed = Preparation.read(head.preparation)
        fits = (len(agreed.features),) == head.shape
        if not fits or len(agreed.classes) not in (0, head.num_classes):
            raise BadColumns("it is for another model")
    except BadColumns as why:
        raise CheckpointError(f"{head.row}: its preparation is damaged: {why}.") from None
    return agreed


def samples(x: Any, head: Header, preparation: Preparation | None) -> NDArray[Any]:
    """Samples (n, *shape), or one of them, as arrays before they are shifted and scaled.

    Columns of a table may have any order where they have names: of a pandas frame or a mapping.
    """
    if preparation is not None:
        return np.asarray(preparation.inputs(cells(x, preparation)))
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        x = x.to_numpy()
    if isinstance(x, Mapping):
        raise DataError("the features of this model have no names: give rows of numbers.")
    found = numbers(x)
    shape = () if head.vectors and found.dtype.kind in "iu" else head.shape
    if found.ndim == len(shape) and found.shape == shape:
        found = found[None]
    if found.shape[1:] != shape:
        if found.ndim == 2 and found[0].size == int(np.prod(shape)):
            return checked(found.reshape(len(found), *shape))
        raise DataError(f"samples of shape {found.shape[1:]} are given, the model takes {shape}.")
    return checked(found)


def numbers(x: Any) -> NDArray[Any]:
    """An array of numbers."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    try:
        found = np.asarray(x)
    except ValueError:
        raise DataError("rows of different lengths are given.") from None
    if found.dtype.kind not in "fiub":
        raise DataError("there are words among the numbers.")
    return found


def checked(found: NDArray[Any]) -> NDArray[Any]:
    """The array, if all of it is finite."""
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        place = np.argwhere(~np.isfinite(found))[0].tolist()
        raise DataError(f"sample {place[0]}: a number is missing or not finite.")
    return found


def cells(x: Any, preparation: Preparation) -> Any:
    """The raw columns, by name or in order; a single row is one of rows."""
    if hasattr(x, "columns"):
        return x
    if isinstance(x, Mapping):
        single = all(np.ndim(x[name]) == 0 for name in preparation.names if name in x)
        return {name: [x[name]] for name in x} if single else x
    rows: Any = x if hasattr(x, "dtype") else np.array(x, object)
    return rows[None] if rows.ndim == 1 else rows


def unscaled(
    weight: Array, bias: Array | None, shift: Array, scale: Array
) -> tuple[Array, Array | None]:
    """A linear model of `(x - shift) * scale` as one of x; without intercept as far as there is."""
    if not shift.any() and (scale == 1.0).all():
        return weight, bias
    own = weight * scale
    return own, None if bias is None else bias - own @ shift


def by_feature(value: PerChannel, shape: tuple[int, ...]) -> Array:
    """A number, or one a channel, as one for each number of a sample."""
    return np.broadcast_to(along_channels(value), shape).reshape(-1)


def in_original_units(
    weight: Array, bias: Array | None, preparation: Preparation
) -> tuple[Array, Array | None]:
    """A linear model of prepared features as one of the raw ones."""
    matrix, start = preparation.linear()
    last = np.zeros(weight.shape[:-1]) if bias is None else bias
    if preparation.numbers:
        rows = np.concatenate([weight, last[..., None]], -1) @ matrix.T + start
        return rows[..., :-1], rows[..., -1]
    scale, shift = np.array(preparation.scale), np.array(preparation.shift)
    return weight * scale, last - (weight * scale) @ shift


def feature_names(preparation: Preparation | None, count: int) -> list[str]:
    """The features' names, or numbers from 1 on."""
    if preparation is not None and len(preparation.features) == count:
        return list(preparation.features)
    return [f"x{number}" for number in range(1, count + 1)]
