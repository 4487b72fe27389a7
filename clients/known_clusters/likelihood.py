"""Users' part in the marginal likelihood of a generalised mixed model: their rows stay at home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from corsage.clients.base import Got, Sent
from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import UserError
from corsage.core.families import FAMILIES, broken, rules
from corsage.networks.batches import Examples
from corsage.solvers.known_clusters.generalised.rows import Rows
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.newton_rounds import newton_message

if TYPE_CHECKING:
    from corsage.clients.known_clusters.mixed_model import MixedModelClient


class BadRow(UserError):
    """A row that its family does not have: which rule it breaks, whose it is, and what it has."""

    def __init__(self, user: str, words: str, found: tuple[float, ...]) -> None:
        super().__init__(user, "train", words)
        self.found = np.array(found, np.float64)


def rows_of(client: MixedModelClient, sent: Arrays, told: bool = False) -> Rows:
    """The users' rows, with weights where there are any; prepared once a node.

    `told`: as what is sent is of them, and of users with enough.
    """
    weights, offset = (sent.get(name) for name in ("weights", "offset"))
    told = told and client.floor >= 2

    def made() -> Rows:
        data = told_of(client) if told else client.train_data(client.limits)
        x = data.x.flatten(1).double().cpu()
        if client.task.model.intercept:
            x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        y, weight, away = data.y.double().cpu(), x.new_ones(len(x)), x.new_zeros(len(x))
        if weights is not None:
            weight = x @ torch.from_numpy(np.asarray(weights, np.float64))
        if offset is not None:
            away = x @ torch.from_numpy(np.asarray(offset, np.float64))
        family = FAMILIES[client.network.criterion.name]
        known = broken(family, y, weight, away)
        for rule, (wrong, values) in enumerate(known[:3] if told else known):  # means are no trials
            if bool(wrong.any()):
                row, ends = int(wrong.nonzero()[0]), np.cumsum(data.sizes)
                place = int(np.searchsorted(ends, row, "right"))
                own = row - int(ends[place] - data.sizes[place])
                user = int(np.flatnonzero(client.shared.some)[place]) if told else place
                what, wanted = rules(family.name)[rule]
                words = f"row {own + 1}: {what}s of loss={family.name} are {wanted}"
                raise BadRow(client.users[user], words, (1 + rule, user, own, values[row].item()))
        return Rows(family, x, y, weight, data.sizes)

    key = "likelihood", told and client.floor, None if weights is None else weights.tobytes()
    return client.prepared(key, made)


def told_of(client: MixedModelClient) -> Examples:
    """The examples that likelihoods which are sent are of; UserError if there are none."""
    data, some = client.told_data, client.shared.some
    if not some.any():
        why = f"fewer rows than min-share={client.floor}: nothing is sent of them"
        raise UserError(client.users[0], "train", why)
    rows = torch.from_numpy(np.repeat(some, data.sizes))
    return Examples(data.x[rows], data.y[rows], data.sizes[some])


def begin(client: MixedModelClient, got: Got) -> Sent:
    """The sums that a search begins with; in a simulation also a row that does not fit."""
    d, fault = len(got.rows["w"]), {"fault": np.zeros(4)} if client.at_home else {}
    half = np.zeros(d * (d + 1) // 2)
    squares, heavy, pull, within = half, half, np.zeros(d), np.zeros((2, d))
    try:
        sums = rows_of(client, got.rows, told=True).begin()
        squares, heavy, pull, within = pack(sums[0]), pack(sums[1]), *sums[2:]
    except BadRow as bad:
        if not fault:
            raise
        fault["fault"] = bad.found
    rows = {"squares": squares, "heavy": heavy, "pull": pull, "within": within, **fault}
    return Sent(rows=rows)


def likelihood(client: MixedModelClient, got: Got) -> Sent:
    """The log marginal likelihood of all users, with its gradient and Hessian."""
    parts = [np.asarray(got.rows[name], np.float64) for name in ("w", "tau", "basis")]
    around = got.rows.get("around", np.zeros((len(parts[0]), 0)))
    value, slope, bend = rows_of(client, got.rows, told=True).jets(
        parts[0], parts[1], parts[2], np.asarray(around, np.float64), got.options["nodes"]
    )
    return Sent(rows={"jets": np.concatenate([value[:, None], slope, pack(bend)], axis=1)})


def modes(client: MixedModelClient, rows: Arrays) -> Floats:
    """Each user's model: its effects at their most likely."""
    w, root = np.asarray(rows["w"], np.float64), np.asarray(rows["root"], np.float64)
    return rows_of(client, rows).modes(w, root, float(rows["shape"]))


def curved(client: MixedModelClient, theta: Floats, rows: Arrays) -> tuple[Floats, Floats]:
    """A_i and b_i of the quadratics that the users' losses are like at their models."""
    hessian, slope = rows_of(client, rows).curved(theta, float(rows["shape"]))
    return newton_message(hessian, slope, theta)


def pearson(client: MixedModelClient, theta: Floats, rows: Arrays) -> float:
    """Pearson's chi^2 around the users' models."""
    return rows_of(client, rows).pearson(theta, float(rows["shape"]))
