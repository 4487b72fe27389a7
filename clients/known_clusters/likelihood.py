"""Users' part in the marginal likelihood of a generalised mixed model: their rows stay at home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from corsage.clients.base import Got, Sent
from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import UserError
from corsage.core.families import FAMILIES
from corsage.core.messages.asked import floats
from corsage.core.messages.fields import Whole
from corsage.networks.batches import Examples
from corsage.solvers.known_clusters.generalised.rows import Rows
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.newton_rounds import newton_message

if TYPE_CHECKING:
    from corsage.clients.known_clusters.mixed_model import MixedModelClient

LIKELIHOOD_ROWS = {
    "tau": floats("K"),
    "basis": floats("K", "P", "K"),
    "around": floats("P", "K"),
    "weights": floats("P"),
    "shape": floats(),
}
LIKELIHOOD_OPTIONS = {"nodes": Whole(0, 25)}


def rows_of(client: MixedModelClient, sent: Arrays, told: bool = False) -> Rows:
    """The users' rows, with weights where there are any; prepared once a node.

    `told`: as what is sent is of them, and of users with enough.
    """
    weights = sent.get("weights")

    def made() -> Rows:
        data = told_of(client) if told else client.train_data(client.limits)
        x = data.x.flatten(1).double().cpu()
        if client.task.model.intercept:
            x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        y, weight = data.y.double().cpu(), x.new_ones(len(x))
        if weights is not None:
            weight = x @ torch.from_numpy(np.asarray(weights, np.float64))
        family = FAMILIES[client.network.criterion.name]
        wanted = f"labels of loss={family.name} are {family.wants}"
        check(client, family.takes(y), wanted, data.sizes)
        check(client, weight > 0, "weights are numbers above 0", data.sizes)
        return Rows(family, x, y, weight, data.sizes)

    told = told and client.floor >= 2
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


def check(client: MixedModelClient, fit: torch.Tensor, wanted: str, sizes: np.ndarray) -> None:
    """Refuse a user with a row that does not fit, in a line."""
    if not bool(fit.all()):
        row = int((~fit).nonzero()[0])
        user = client.users[int(np.searchsorted(np.cumsum(sizes), row, "right"))]
        raise UserError(user, "train", f"{wanted}; a row has something else")


def begin(client: MixedModelClient, got: Got) -> Sent:
    """The sums that a search begins with."""
    squares, heavy, pull = rows_of(client, got.rows, told=True).begin()
    return Sent(rows={"squares": pack(squares), "heavy": pack(heavy), "pull": pull})


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
