"""Fed-MTL at the users: SGD on one's own loss and the regulariser, on a model of one's own.

Smith et al. 2017, Algorithm 1, lines of the nodes; its local subproblem is solved by SGD.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from corsage.clients.base import Evaluation, Fit
from corsage.clients.local import LocalClient
from corsage.networks.parts import train_models
from corsage.networks.training import Pull


class FedMTLClient(LocalClient):
    """The users of Fed-MTL; each evaluates the model that it keeps."""

    averaged = False
    returns = ("model",)

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """w_i <- SGD on f_i(w) + strength_i / 2 |w - centre_i|^2."""
        data = self.train_data()
        models = self.remembered("model", self.network.initial)
        orders = self.orders("model", data, self.settings.local_epochs)
        pull = Pull(self.rows["strength"], self.rows["centre"])
        models = train_models(self.network, models, data, orders, self.settings, pull)
        self.keep("model", models)
        return [models], int(data.sizes.sum()), {"num-examples": data.sizes}

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user is one more task, and begins where the regulariser alone would have it."""
        self._states = [{"model": centre} for centre in self.rows["centre"]]
        return super().adapt(parameters, config)
