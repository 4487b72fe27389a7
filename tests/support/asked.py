"""Users at hand who are asked as those of a federation are: an oracle that counts exchanges."""

from __future__ import annotations

import numpy as np

from corsage.solvers.convex_clustering.expansions import answer


class Oracle:
    """Answers for losses, or for users with folds; `exchanges` has the probes of each."""

    def __init__(self, losses=None, users=None):
        self.losses, self.users, self.exchanges, self._known = losses, users, [], {}

    def __call__(self, probes):
        self.exchanges.append(len(probes))
        return [answer(self.on(each.fold), each, self.held(each)) for each in probes]

    def on(self, fold):
        if self.users is None:
            return self.losses
        if fold not in self._known:
            self._known[fold] = self.users.losses_without(fold)
        return self._known[fold]

    def held(self, probe):
        if probe.fold is None:
            return np.full(len(probe.x), np.nan)
        return self.users.evaluate(probe.x, probe.fold)
