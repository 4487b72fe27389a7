"""The schema of a reply: declared before the server asks, checked before anything is decoded.

A reply says which exchange it answers, for which of the users that were asked; it has the arrays
that were asked for, in their dtype and shape, and numbers of each user within their ranges. How
many samples a user has, and so what it weighs, is known from its node's introduction: a reply can
only repeat it. Records and numbers that are not declared are never looked at; what is said in words
is declared in replies.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Array, Arrays, Floats
from corsage.core.counts import EXAMPLES, Number
from corsage.core.errors import Refused, line
from corsage.core.messages.encoding import plain
from corsage.core.messages.fields import shown

MARGIN = 16.0
"""Arrays stay below overflow by it: squares of differences of differences are still finite."""


@dataclass(frozen=True)
class Schema:
    """The replies that users of an exchange may send.

    Parameters
    ----------
    arrays : arrays of the shape and dtype that one user sends.
    by_user : those that come one row a user; the others come as their mean.
    numbers : what each user reports besides its number of samples.
    samples : how many samples each user has, of those that the exchange is about.
    by_samples : whether means weigh users by their samples.
    most : the share of a mean that one user may have then.
    among : the samples of those among whom that share counts; none: of the users of the exchange.
    training : whether users may keep a personal state of this exchange.
    fault : (user, its rows, all in range) -> why no data come to such rows; empty: they may be.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    by_user: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    samples: Mapping[str, int] = field(default_factory=dict)
    by_samples: bool = False
    most: float = 1.0
    among: Mapping[str, int] = field(default_factory=dict)
    training: bool = True
    fault: Callable[[str, Arrays], str] | None = None

    @cached_property
    def cut(self) -> Mapping[str, float]:
        """The weights of all users, if one of them would have more than its share; else none."""
        if not self.by_samples or not self.samples:
            return {}
        among = {**self.among, **self.samples}
        whole = np.array(list(among.values()), np.float64)
        weights = capped(whole, self.most)
        return {} if weights is whole else dict(zip(among, weights.tolist(), strict=True))

    def weight(self, users: list[str]) -> float:
        """The weight of users in a mean."""
        weights = self.cut or self.samples
        return math.fsum(weights[user] for user in users) if self.by_samples else float(len(users))


def read_numbers(
    record: Mapping[str, object], users: list[str], schema: Schema
) -> tuple[dict[str, Floats], dict[int, str]]:
    """The declared numbers, and which users' are wrong and why."""
    numbers = [n for n in schema.numbers if not n.optional or n.name in record]
    found, wrong = dict[str, Floats](), dict[int, str]()
    for name in (EXAMPLES, *(number.name for number in numbers)):
        if name not in record:
            raise Refused(f"{name}: it is missing")
        values = record[name]
        if not isinstance(values, list):
            raise Refused(f"{name}={shown(values)}: not a list")
        if len(values) != len(users):
            raise Refused(f"{len(values)} values of {name}, {len(users)} users")
        if set(map(type, values)) - {int, float}:
            raise Refused(f"{name} is not of numbers")
        found[name] = np.array(values, np.float64)
    samples = np.fromiter(map(schema.samples.__getitem__, users), np.float64, len(users))
    for place in np.flatnonzero(found[EXAMPLES] != samples)[::-1]:
        said, known = found[EXAMPLES][place], samples[place]
        wrong[int(place)] = f"{EXAMPLES} is {said:.10g}, it introduced itself with {known:.10g}"
    for number in numbers:
        values = found[number.name]
        for place in np.flatnonzero(number.wrong(values, samples)):
            wrong.setdefault(int(place), number.why(float(values[place]), float(samples[place])))
    return found, wrong


def read_arrays(
    mean: ArrayRecord, rows: ArrayRecord, users: list[str], schema: Schema
) -> tuple[Arrays, Arrays, dict[int, str]]:
    """The means and rows of users, and which users' rows are wrong and why.

    Entries are finite, and so small that sums of squares over all users are finite with them.
    """
    averaged, by_user = set(schema.arrays).difference(schema.by_user), set(schema.by_user)
    if set(mean) != averaged or set(rows) != by_user:
        got = line(f"{sorted(mean)}" + (f" and rows {sorted(rows)}" if rows else ""))
        wanted = f"{sorted(averaged)}" + (f" and rows {sorted(by_user)}" if by_user else "")
        raise Refused(f"wrong arrays: got {got}, expected {wanted}")
    means, each, wrong, count = Arrays(), Arrays(), dict[int, str](), len(users)
    for name, one in schema.arrays.items():
        most = math.inf
        if one.dtype.kind == "f":
            entries = max(one.size, 1) * max(len(schema.samples), 1)
            most = math.sqrt(float(np.finfo(one.dtype).max) / (MARGIN * entries))
        if name in averaged:
            summed = mean[name].shape == (2, *one.shape)  # high and low
            kinds = {np.dtype(np.float64)} if summed else {one.dtype, np.dtype(np.float64)}
            means[name] = plain(mean[name], kinds, (2,) * summed + one.shape, name)
            flat = means[name].reshape(1 + summed, one.size)
            most *= schema.weight(users) if summed else 1.0
        else:
            each[name] = plain(rows[name], {one.dtype}, (count, *one.shape), name)
            flat = each[name].reshape(count, one.size)
        fits = (flat.min(1, initial=0) >= -most) & (flat.max(1, initial=0) <= most)  # NaN does not
        for place in np.flatnonzero(~fits):
            if name in averaged:
                raise Refused(unfit(name, means[name], most))
            wrong.setdefault(int(place), unfit(name, each[name][place], most))
    for at, user in enumerate(users if schema.fault else ()):
        own = {name: array[at] for name, array in each.items()}
        if at not in wrong and schema.fault and (why := schema.fault(user, own)):
            wrong[at] = why
    return means, each, wrong


def unfit(name: str, array: Array, limit: float) -> str:
    """Say what is wrong with the entries of an array."""
    if not np.isfinite(array).all():
        return f"not finite: {name}"
    size = float(np.abs(array).max())
    return f"too large: {name} has an entry of size {size:.3g}, the most is {limit:.3g}"


def capped(weights: Floats, most: float) -> Floats:
    """The weights, cut so that none is more than the share `most` of their sum.

    The largest are lowered to one height c, the others stay: min(w, c) with the largest c for
    which c <= most * sum of min(w, c). A share below 1/m cannot be had of m users: then all weigh
    the same. Weights that are within their shares are returned as they are, bit for bit.

    Parameters
    ----------
    weights : not negative, at least one of them positive.
    most : a share of the whole, above 0.
    """
    if not weights.any():
        return weights
    total, m = float(weights.sum()), int((weights > 0).sum())
    share = max(most, 1.0 / m)
    if weights.max() <= share * total:
        return weights
    falling = np.sort(weights)[::-1]
    rest = total - np.cumsum(falling)
    for k in range(1, m):  # the k largest are cut to c = share (k c + rest); the next one is not
        if share * k >= 1.0:
            break
        height = share * max(float(rest[k - 1]), 0.0) / (1.0 - share * k)
        if height >= falling[k]:
            return _cut(weights, height)
    return _cut(weights, float(falling[m - 1]))


def _cut(weights: Floats, height: float) -> Floats:
    found: Floats = np.minimum(weights, height)
    return found
