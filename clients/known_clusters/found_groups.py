"""Groups that nobody told at the users: sums of folds, and models that are means over groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corsage.clients.base import Got, Sent
from corsage.core.arrays import Arrays, Floats
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.folds import sums_in
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.variances.mixtures import Mixture

if TYPE_CHECKING:
    from corsage.clients.known_clusters.mixed_model import MixedModelClient


def fold_sums(client: MixedModelClient, got: Got) -> Sent:
    """A_i, b_i, y'y and the records of each fold (n, F, d(d+1)/2 + d + 2)."""
    held, sizes = client.held, client.train_data(client.limits).sizes
    user, fold = client.folds_of(sizes)
    counts = np.zeros(held.yy.shape)
    np.add.at(counts, (fold, user), 1.0)
    if client.floor >= 2:
        counts *= client.shared.some
    rows = np.concatenate([pack(held.a), held.b, held.yy[..., None], counts[..., None]], axis=2)
    own = rows.swapaxes(0, 1)
    sums = own if got.options.get("each") else own.sum(0, keepdims=True)
    return Sent(rows={"folds": sums}, metrics=client.floored)


def models(client: MixedModelClient, rows: Arrays) -> Floats:
    """theta_i (n, d): means over the groups that users may be of, by their own rows.

    These are squares' models of the labels; `scale` and `start` make scores of the loss of them.
    """
    data, n = client.train_data(client.limits), len(client.users)
    user = np.repeat(np.arange(n), data.sizes)
    held = sums_in(client.columns(data), client.labels(data), user, np.zeros_like(user), n, 1)
    root = np.asarray(rows["root"], np.float64)
    groups = Mixture(np.exp(rows["odds"]), rows["middles"], root, float(rows["noise"]))
    found = groups.models(Sums.of(held.a[0], held.b[0], held.yy[0]))
    return np.asarray(rows["start"] + rows["scale"] * found)
