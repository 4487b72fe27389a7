"""The keys of the server's step: what it does with the users' mean."""

from __future__ import annotations

from dataclasses import dataclass, fields

from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, kebab, key, word

ADAPTIVE = ("adam", "yogi", "adagrad")


@dataclass(frozen=True)
class ServerKeys(Keys):
    """How the server goes from the model that it sent towards the users' mean."""

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
        """Whether the server has a step of its own."""
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
