"""Users' part in the marginal likelihood of a generalised mixed model: their rows stay at home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from corsage.clients.base import Got, Sent
from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import UserError
from corsage.core.families import FAMILIES
from corsage.solvers.known_clusters.generalised.rows import Rows
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.newton_rounds import newton_message

if TYPE_CHECKING:
    from corsage.clients.known_clusters.mixed_model import MixedModelClient


def rows_of(client: MixedModelClient, sent: Arrays) -> Rows:
    """The users' rows, with weights where there are any; prepared once a node."""
    weights = sent.get("weights")

    def made() -> Rows:
        data = client.train_data(client.limits)
        x = data.x.flatten(1).double().cpu()
        if client.task.model.intercept:
            x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        y, weight = data.y.double().cpu(), x.new_ones(len(x))
        if weights is not None:
            weight = x @ torch.from_numpy(np.asarray(weights, np.float64))
        family = FAMILIES[client.network.criterion.name]
        check(
            client, family.takes(y), f"labels of loss={family.name} are {family.wants}", data.sizes
        )
        check(client, weight > 0, "weights are numbers above 0", data.sizes)
        return Rows(family, x, y, weight, data.sizes)

    return client.prepared(("likelihood", None if weights is None else weights.tobytes()), made)


def check(client: MixedModelClient, fit: torch.Tensor, wanted: str, sizes: np.ndarray) -> None:
    """Refuse a user with a row that does not fit, in a line."""
    if not bool(fit.all()):
        row = int((~fit).nonzero()[0])
        user = client.users[int(np.searchsorted(np.cumsum(sizes), row, "right"))]
        raise UserError(user, "train", f"{wanted}; a row has something else")


def begin(client: MixedModelClient, got: Got) -> Sent:
    """The sums that a search begins with."""
    squares, heavy, pull, within = rows_of(client, got.rows).begin()
    sums = {"squares": pack(squares), "heavy": pack(heavy), "pull": pull, "within": within}
    return Sent(rows=sums)


def likelihood(client: MixedModelClient, got: Got) -> Sent:
    """The log marginal likelihood of all users, with its gradient and Hessian."""
    parts = [np.asarray(got.rows[name], np.float64) for name in ("w", "tau", "basis")]
    around = got.rows.get("around", np.zeros((len(parts[0]), 0)))
    value, slope, bend = rows_of(client, got.rows).jets(
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
