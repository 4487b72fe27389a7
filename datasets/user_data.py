"""The data of the users that are hosted at a place, whoever read and dealt them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Array, Floats, Floats32, Ints, PerChannel
from corsage.core.errors import DataError

if TYPE_CHECKING:
    from corsage.core.tables.column_facts import TableFacts
    from corsage.core.tables.preparation import Preparation

NO_TESTS = (
    "no user has test samples, so that nothing could be reported: set test-fraction above 0, or "
    "give users more than one sample each."
)


@dataclass(frozen=True, eq=False)
class OwnScales:
    """Each user's own shift and scale, where every one is scaled by its own rows.

    Parameters
    ----------
    shift, scale : (users, inputs).
    label : (users, 2), mean and scale of labels that are numbers.
    """

    shift: Floats
    scale: Floats
    label: Floats

    def of(self, user: int, agreed: Preparation) -> Preparation:
        """A user's own preparation."""
        mean, scale = self.label[user].tolist()
        label = replace(agreed.label, mean=mean, scale=scale)
        shift, factor = tuple(self.shift[user].tolist()), tuple(self.scale[user].tolist())
        return replace(agreed, label=label, shift=shift, scale=factor)


@dataclass(frozen=True, eq=False)
class UserData:
    """One user's samples, raw: `model_input` makes the model's input of them. Labels are classes
    (int64) or numbers (float64).

    In a simulation the arrays are read-only views of a file mapped into memory.
    """

    user: str
    cluster: str | None
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


@dataclass(frozen=True, eq=False)
class FederatedData:
    """All users that are hosted here. User i's rows of `x` and `y` are given by `bounds[i]`:
    start, end of the training part (where its test part starts), end. With `vectors`, `x` are
    numbers of its rows, which are the model's input. With `num_classes` 0, `y` are numbers.

    Of a table of one's own, `facts` name the columns, and `x` are raw cells until the federation
    has agreed on a `preparation` (`dealing.prepared`); `own` are then the users' own scales, if
    each has one. Images and tokens have names of `classes` alone. `notes` are worth a line each.

    Where nothing is `held_out`, users are judged by the samples that they train on.
    """

    users: list[str]
    clusters: dict[str, str]
    num_classes: int
    shift: PerChannel
    scale: PerChannel
    x: Array
    y: Array
    bounds: Ints
    vectors: Floats32 | None = None
    facts: TableFacts | None = None
    preparation: Preparation | None = None
    own: OwnScales | None = None
    notes: tuple[str, ...] = ()
    held_out: bool = True
    classes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model sees it."""
        return tuple(self.x.shape[1:]) + (() if self.vectors is None else self.vectors.shape[1:])

    def preparation_of(self, user: str) -> Preparation | None:
        """The preparation of a user's columns."""
        if self.own is None or self.preparation is None:
            return self.preparation
        return self.own.of(self.index[user], self.preparation)

    @cached_property
    def train_sizes(self) -> Ints:
        """Training samples of each of `users`."""
        return self.bounds[:, 1] - self.bounds[:, 0]

    @cached_property
    def test_sizes(self) -> Ints:
        """Test samples of each of `users`."""
        return self.bounds[:, 2] - self.bounds[:, 1] if self.held_out else self.train_sizes

    @cached_property
    def index(self) -> dict[str, int]:
        """Each user's place in `users`."""
        return {user: i for i, user in enumerate(self.users)}

    def __getitem__(self, user: str) -> UserData:
        if user not in self.index:
            raise DataError(f"user {user}: has no data here; {len(self.users)} other users do.")
        start, middle, end = (int(b) for b in self.bounds[self.index[user]])
        train = slice(start, middle)
        test = slice(middle, end) if self.held_out else train
        x, y = self.x, self.y
        return UserData(user, self.clusters.get(user), x[train], y[train], x[test], y[test])

    def part(self, users: Sequence[str], test: bool) -> tuple[Array, Array, Ints]:
        """Training or test samples of several users, one after the other, and each one's number."""
        rows, sizes = self.rows(users, test)
        return self.x[rows], self.y[rows], sizes

    def rows(self, users: Sequence[str], test: bool) -> tuple[Ints, Ints]:
        """The places of these samples, and each user's number of them."""
        own = self.bounds[self.places(users)]
        part = int(test and self.held_out)
        start, end = own[:, part], own[:, part + 1]
        sizes = np.asarray(end - start, np.int64)
        rows = np.arange(sizes.sum()) + np.repeat(start - (np.cumsum(sizes) - sizes), sizes)
        return rows, sizes

    def places(self, users: Sequence[str]) -> Ints:
        """The places of users among all of them."""
        return np.fromiter(map(self.index.__getitem__, users), np.int64, len(users))
