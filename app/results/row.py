"""A row of a run's table: its numbers, and every user's model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.app.results.model_inputs import preparation_of
from corsage.app.results.rowfile import SHARED_PREFIX, RowFile
from corsage.core.arrays import Arrays
from corsage.core.configuration.data_keys import BY_USER
from corsage.core.distribution import Spread
from corsage.core.errors import CorsageError, DataError
from corsage.core.keys import nearest
from corsage.core.measures import MEASURES
from corsage.core.pairs.hurt import Hurt
from corsage.strategies.rounds.results import Summary

if TYPE_CHECKING:
    from corsage.app.results.user_model import UserModel
    from corsage.datasets.user_data import FederatedData

Json = dict[str, Any]
Data = Callable[[], "FederatedData"]
SHOWN_USERS = 12
ROWS_OF_HEADS = {"exact", "gauss", "prior", "auto"}
"""Ends of names of rows whose heads follow from a user's records (`end-heads`)."""


class NoModel(CorsageError, KeyError):
    """A user or a row that there is not, or a model that is somewhere else."""

    __str__ = CorsageError.__str__


class Row:
    """A row of the table.

    Parameters
    ----------
    numbers : its numbers, as the summary's file has them.
    models : opens the file of its models, or says in a CorsageError why there is none.
    data : the run's own data.
    shared : the strategy's shared arrays at the end, by the names of parameters.
    summary : the same numbers as the strategy's own object, if it was this process that ran it.
    """

    def __init__(
        self,
        numbers: Json,
        models: Callable[[], RowFile],
        data: Data,
        shared: Callable[[], Arrays],
        summary: Summary | None = None,
    ) -> None:
        self.numbers, self._open, self.users_data, self.shared = numbers, models, data, shared
        self._summary = summary
        self.hurt: dict[str, Hurt] = {}
        """Who is worse off than alone, and than with one model for all."""

    def with_numbers(self, numbers: Json, own: Callable[[Summary], Summary]) -> Row:
        """The same models with other numbers; `own` makes the strategy's object say them too."""
        summary = None if self._summary is None else own(self._summary)
        return Row(numbers, self._open, self.users_data, self.shared, summary)

    def compare(self, hurt: Mapping[str, Hurt]) -> None:
        """Take who is worse off here than in other rows of the same table."""
        self.hurt = dict(hurt)
        self.numbers["hurt"] = {kind: one.json() for kind, one in hurt.items()}
        if isinstance(self._summary, Summary):
            self._summary = replace(self._summary, hurt=dict(hurt))

    # Numbers.

    @property
    def name(self) -> str:
        """As the table has it."""
        return str(self.numbers["strategy"])

    @property
    def measure(self) -> str:
        """The measure that users are judged by."""
        return str(self.numbers.get("measure", "accuracy"))

    @property
    def score(self) -> Spread:
        """The measure over the users."""
        return Spread(**self.numbers[self.measure])

    @property
    def per_user(self) -> dict[str, float]:
        """Each user's measure."""
        return dict(self.numbers["per_user"])

    @property
    def last10(self) -> float:
        """The mean of the measure over the last ten evaluated rounds."""
        return float(self.numbers[f"{self.measure}_last10"])

    @property
    def users(self) -> list[str]:
        """The users, each of whom has a model."""
        return users_of(self.numbers)

    @property
    def untested(self) -> list[str]:
        """The users without test samples."""
        return list(self.numbers.get("untested", ()))

    @property
    def clusters(self) -> dict[str, str]:
        """Each user's cluster, where the method has clusters; else none."""
        return dict(self.numbers.get("clusters", {}))

    def summary(self) -> str:
        """The method's findings, as on the terminal: of a linear model its coefficients with
        standard errors, the components of variance, and how far users are shrunken."""
        from corsage.app.output.summary import findings_tables, plain

        return plain(*findings_tables([self.numbers])).strip()

    def json(self) -> Json:
        """All of its numbers."""
        return self.numbers

    def __getattr__(self, name: str) -> Any:
        """The other numbers, as the summary has them: `row.rounds`, `row.seconds`."""
        if not name.startswith("_") and hasattr(self._summary, name):
            return getattr(self._summary, name)
        if name.startswith("_") or name not in self.numbers:
            raise AttributeError(f"a row has no {name}; its numbers are in row.json()")
        return self.numbers[name]

    def __len__(self) -> int:
        """The number of users."""
        return len(self.users)

    def __iter__(self) -> Iterator[str]:
        """The users."""
        return iter(self.users)

    def __repr__(self) -> str:
        kind, score = MEASURES[self.measure], self.score
        value = f"{kind.text(score.mean)} ± {kind.text(score.std)}"
        return f"<{self.name}: {kind.title} {value} over {len(self)} users>"

    # Models.

    @cached_property
    def file(self) -> RowFile:
        """The file of the models."""
        return self._open()

    def user(self, user: str | int) -> UserModel:
        """A user's own model: `row.user("7").predict(x)`."""
        from corsage.app.results.user_model import UserModel

        name = str(user)
        file = self.file
        if name not in file.place:
            raise NoModel(unknown_user(name, self.name, self.users))
        head = file.header
        if not head.kept and head.devices:
            raise NoModel(
                f"{self.name}: the model of user {name} is on its device, or a part of it is: "
                "corsage predict STATE_DIR FILE there predicts with it."
            )
        if not head.kept:
            raise NoModel(
                f"{self.name}: the users' own models were not kept (they take {head.size:,} bytes):"
                " run it with keep-models=all."
            )
        own, scales = file.own(name), file.scales(name)
        return UserModel(name, head, own, self._vectors, "", scales, self)

    @cached_property
    def prepared(self) -> FederatedData:
        """The run's own data as the models take them."""
        from corsage.datasets.dealing.prepared_tables import prepared

        data, agreed = self.users_data(), preparation_of(self.file.header)
        return data if agreed is None or data.facts is None else prepared(data, agreed)

    def models(self) -> Iterator[UserModel]:
        """Every user's model, one after the other."""
        return (self.user(name) for name in self.users)

    def new_user(self) -> UserModel:
        """A model for somebody new: shared parameters, and untrained ones for the rest.

        It says itself what it is made of: `model.start`.
        """
        from corsage.app.results.user_model import UserModel

        head = self.file.header
        if head.combination is not None:
            raise NoModel(
                f"{self.name} has no model for new users: what is a user's own is made of its "
                "samples. new-users=... holds some users back: the row +new."
            )
        if not ROWS_OF_HEADS.isdisjoint(self.name.split("+")[1:]):
            raise NoModel(
                f"{self.name} has no model for new users without records: a head in closed form is "
                "made of them. new-users=... holds some users back: the row +new."
            )
        agreed = preparation_of(head)
        if agreed is not None and agreed.scaling == BY_USER:
            raise NoModel(
                f"{self.name}: scale=user: what a new user's columns are scaled by is in its own "
                "training rows; use scale=federated, or new-users=..., the row +new."
            )
        known = {
            n.removeprefix(SHARED_PREFIX): self.file.array(n)
            for n in self.file.names
            if SHARED_PREFIX in n
        }
        known = {**self.shared(), **known}
        model = UserModel("", head, known, self._vectors)
        network = model.network
        names = [b.name for b in network.blocks]
        if missing := [name for name in names if name not in known]:
            if len(missing) == len(names):
                raise NoModel(
                    f"{self.name} has no model for new users: its users share none. "
                    "new-users=... holds some back and lets them adapt: the row +new."
                )
            first = network.named(network.initial)
            known = {**known, **{name: first[name] for name in missing}}
            start = f"what all share, {', '.join(missing)} untrained"
        else:
            start = "what all share"
        names += [name for name in network.vector.fixed.tensors if name in known]
        own = {name: known[name] for name in names}
        return UserModel("", head, own, self._vectors, start, row=self)

    # The same numbers again.

    def evaluate(self) -> dict[str, float]:
        """Each user's measure again, of the loaded models on the run's own test data.

        Users whose test data have no such value are left out.
        """
        if self.file.header.devices:
            raise NoModel(f"{self.name}: the users' test data are on their devices.")
        before = self.numbers.get("held_out", {})
        if before.get("rows") and "trained" not in before:
            raise NoModel(
                f"{self.name}: its models are fitted to all rows, of which none is left to judge "
                "them by; its scores are of models that were fitted before, without some of them."
            )

        data = self.prepared
        found = {user: self._judged(user, data) for user in self.users if len(data[user].y_test)}
        return {user: value for user, value in found.items() if math.isfinite(value)}

    def _judged(self, user: str, data: FederatedData) -> float:
        from corsage.clients.parts.samples import units_of
        from corsage.networks.user_scores import score

        model, own, measure = self.user(user), data[user], MEASURES[self.measure]
        outputs = model.of_arrays(own.x_test)
        examples = replace(model.examples(own.x_test, own.y_test), units=units_of(data, [user]))
        scores = score(model.network.criterion, outputs, examples, [measure])
        n = scores.n.astype(np.float64)
        return float(measure.user({**scores.counts, "num-examples": n})[0])

    def _vectors(self) -> Any:
        vectors = self.users_data().vectors
        if vectors is None:
            raise DataError("the run's data have no vectors.")
        return vectors


def users_of(numbers: Json) -> list[str]:
    """The users of a row, those without test samples last."""
    names = (*numbers["per_user"], *numbers.get("test_sizes", ()), *numbers.get("untested", ()))
    return list(dict.fromkeys(names))


def unknown_user(name: str, row: str, users: list[str]) -> str:
    """The message on a user that is not there."""
    some = ", ".join(users[:SHOWN_USERS]) + (", ..." if len(users) > SHOWN_USERS else "")
    near = nearest(name, users) if len(users) <= 10_000 else ""
    hint = near if "Did you mean" in near else f" There are {len(users)}: {some}."
    return f"user {name}: has no model in {row}.{hint}"


def unknown_row(name: str, rows: Mapping[str, Any], failed: Mapping[str, str]) -> str:
    """The message on a row that is not there."""
    if name in failed:
        return f"{name} failed: {failed[name]}"
    return f"{name}: no such row. There are: {', '.join(rows) or 'none'}."
