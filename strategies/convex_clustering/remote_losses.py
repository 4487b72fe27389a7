"""The users' losses as the server's mathematics takes them: every call is an exchange.

What is written for losses at hand (sum_of_norms.py, recovery.py, selection.py of the solvers)
then works in a federation as it is: users see points and answer with values, gradients, Hessians,
and never with data. Exchanges are counted: on devices each takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Arrays, Floats
from corsage.core.messages.replies import Replies
from corsage.solvers.losses.held_out import Fold

AskUsers = Callable[[str, Arrays, Arrays, dict[str, Any]], Replies]
"""(question, rows of all users, template of a user's answer, options) -> their answers."""


class RemoteLosses:
    """f_i of all users, at the users (see corsage.solvers.losses.convex.Losses).

    Parameters
    ----------
    ask : one exchange with all users.
    n, d : users, numbers in a model.
    fold : samples that are left out, or None.
    """

    dtype, device = torch.float64, torch.device("cpu")

    def __init__(self, ask: AskUsers, n: int, d: int, fold: Fold | None = None) -> None:
        self.n, self.d, self._ask = n, d, ask
        self._options = fold_options(fold)
        self._known: tuple[bytes, Floats, Floats] | None = None

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""
        return torch.from_numpy(self._at(x)[0])

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        return torch.from_numpy(self._at(x)[1])

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessians, of the generalised ones where f_i has no other."""
        template = {"hessian": np.zeros((self.d, self.d))}
        replies = self._ask("hessian", {"x": x.numpy()}, template, self._options)
        return torch.from_numpy(replies.rows["hessian"].copy())

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2."""
        rows = {"p": centre.numpy(), "kappa": np.broadcast_to(np.asarray(kappa), (self.n,)).copy()}
        replies = self._ask("prox", rows, {"x": np.zeros(self.d)}, self._options)
        return torch.from_numpy(replies.rows["x"].copy())

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + <slope_i, x>; rows of NaN where there is none."""
        rows = {"slope": np.zeros((self.n, self.d)) if slope is None else slope.numpy()}
        replies = self._ask("minimise", rows, {"x": np.zeros(self.d)}, self._options)
        x = replies.rows["x"].copy()
        x[replies.metrics["found"] == 0] = np.nan
        return torch.from_numpy(x)

    def smoothness(self) -> Tensor:
        """L_i."""
        return torch.from_numpy(self._facts()["smoothness"])

    def convexity(self) -> Tensor:
        """mu_i."""
        return torch.from_numpy(self._facts()["convexity"])

    def coercive(self) -> Tensor:
        """True if f_i is known to grow in all directions."""
        return torch.from_numpy(self._facts()["coercive"] > 0)

    def _facts(self) -> dict[str, Floats]:
        return self._ask("facts", {}, {}, self._options).metrics

    def _at(self, x: Tensor) -> tuple[Floats, Floats]:
        """Values and gradients at a point; those of the last point are remembered.

        Users are asked about numbers only: where a row of x is none, so is what it comes to.
        """
        point = x.numpy()
        if self._known is None or self._known[0] != point.tobytes():
            template, sound = {"gradient": np.zeros(self.d)}, np.isfinite(point).all(1)
            asked = {"x": np.where(sound[:, None], point, 0.0)}
            replies = self._ask("gradient", asked, template, self._options)
            value = np.where(sound, replies.metrics["value"], np.nan)
            gradient = np.where(sound[:, None], replies.rows["gradient"], np.nan)
            self._known = point.tobytes(), value, gradient
        return self._known[1], self._known[2]


class RemoteUsers:
    """Questions to users about samples that were left out (see held_out.HeldOut).

    Parameters
    ----------
    ask : one exchange with all users.
    n, d : users, numbers in a model.
    """

    def __init__(self, ask: AskUsers, n: int, d: int) -> None:
        self._ask, self._n, self._d = ask, n, d

    def losses_without(self, fold: Fold | None) -> RemoteLosses:
        """f_i on the samples that are not held out."""
        return RemoteLosses(self._ask, self._n, self._d, fold)

    def evaluate(self, models: Floats, fold: Fold) -> Floats:
        """The mean loss of each user's model on its held-out samples; NaN where it has none."""
        metrics = self._ask("held_out", {"x": models}, {}, fold_options(fold)).metrics
        return np.where(metrics["found"] > 0, metrics["value"], np.nan)


def fold_options(fold: Fold | None) -> dict[str, Any]:
    """A fold as options of a message."""
    if fold is None:
        return {}
    return {"fold": fold.purpose, "fold-number": fold.number, "fold-share": fold.share}
