"""The keys of the server: how it averages what users send, and its own step on the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, check_limits, convert, flatten, kebab, key, word

ADAPTIVE = ("adam", "yogi", "adagrad")


@dataclass(frozen=True)
class ServerKeys(Keys):
    """The server's step from the model that it sent towards the users' mean."""

    title = "The server's step"

    server_optimizer: str = key(
        "none",
        "how the server goes towards the users' mean. none: it takes the mean; momentum: FedAvgM; "
        "adam, yogi, adagrad: FedOpt (Reddi et al. 2021). It steps on what is trained; running "
        "statistics are averaged",
        choices=("none", "momentum", *ADAPTIVE),
    )
    server_lr: float = key(
        0.0, "step size of the server (eta); 0: 1 with momentum, .1 with the others", low=0.0
    )
    server_beta1: float = key(
        0.9, "share of what was before in the server's momentum (beta_1)", low=0.0, high=0.999999
    )
    server_beta2: float = key(
        0.99, "adam, yogi: share of what was before in the squares (beta_2)", low=0.0, high=0.999999
    )
    server_tau: float = key(
        1e-3, "adam, yogi, adagrad: how adaptive steps are, small is more (tau)", low=1e-12
    )

    @property
    def on(self) -> bool:
        """Tell whether the server has a step of its own."""
        return self.server_optimizer != "none"

    @property
    def eta(self) -> float:
        """The step size."""
        return self.server_lr or (1.0 if self.server_optimizer == "momentum" else 0.1)

    def check(self) -> None:
        """Refuse keys that the optimizer has no use for."""
        uses = {
            "server_lr": ("momentum", *ADAPTIVE),
            "server_beta1": ("momentum", *ADAPTIVE),
            "server_beta2": ("adam", "yogi"),
            "server_tau": ADAPTIVE,
        }
        for f in fields(self):
            value = getattr(self, f.name)
            wanted = uses.get(f.name, (self.server_optimizer,))
            if value != f.default and self.server_optimizer not in wanted:
                raise ConfigError(
                    f"{kebab(f.name)}={word(value)}: server-optimizer={self.server_optimizer} has "
                    f"no use for it; leave it out, or set server-optimizer={' or '.join(wanted)}."
                )


@dataclass(frozen=True)
class RobustKeys(Keys):
    """Averages of the users' arrays if some of the users may be bad."""

    title = "Robust averages"

    robust: str = key(
        "none",
        "how users' arrays are averaged. none: their mean; clip: the mean of updates shortened to "
        "clip-norm; median, trimmed-mean: of each coordinate; krum: the mean of the users nearest "
        "to others. All but none are told each user's array; strategies that average nothing "
        "refuse them",
        choices=("none", "clip", "median", "trimmed-mean", "krum"),
    )
    clip_norm: str = key(
        "median",
        "clip: the norm that no update exceeds (C): a number, or median: that of the users' norms, "
        "over the last ten rounds",
    )
    robust_share: float = key(
        0.3,
        "trimmed-mean, krum: share of a round's users that may be bad: so many of n, rounded down "
        "but at least one, are cut off at either end (beta), or are krum's f, which needs "
        "n >= 2 f + 3",
        low=0.0,
        high=0.49,
    )
    krum_keep: int = key(
        0, "krum: users of least score that are averaged (m); 1: Krum itself; 0: n - f", low=0
    )

    @property
    def on(self) -> bool:
        """Tell whether there is a rule at all."""
        return self.robust != "none"

    @property
    def limit(self) -> float:
        """C, or infinity where it is the median of norms."""
        if self.clip_norm == "median":
            return math.inf
        number = convert("clip-norm", self.clip_norm, float)
        check_limits("clip-norm", number, {"choices": None, "low": 1e-12, "high": None})
        return float(number)

    def check(self) -> None:
        """Refuse a limit that is no number, and keys that the rule has no use for."""
        self.limit  # noqa: B018 - a number, or a ConfigError
        uses = {"trimmed-mean": ("robust-share",), "krum": ("robust-share", "krum-keep")}
        own, idle = {"clip": ("clip-norm",), **uses}, flatten(RobustKeys())
        for name, value in flatten(self).items():
            if name != "robust" and name not in own.get(self.robust, ()) and value != idle[name]:
                rules = ", ".join(rule for rule, names in own.items() if name in names)
                raise ConfigError(
                    f"{name}={value}: robust={self.robust} has no use for it; leave it out, or set "
                    f"robust={rules}."
                )
