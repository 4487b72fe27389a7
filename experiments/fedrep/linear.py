"""Common parts of the experiments on shared linear representations (section 5.1 of FedRep)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from corsage.core.arrays import Floats, Ints
from corsage.experiments.fedrep.linear_fedrep import (
    Alternation,
    drawn_users,
    leading_subspace,
    moments,
)
from corsage.experiments.fedrep.linear_problem import Problems, Samples


@dataclass(frozen=True)
class Setting:
    """A problem and how it is trained on, in the paper's symbols.

    Parameters
    ----------
    d, k, n, m : dimensions of inputs and features, users, samples a user.
    noise : the standard deviation of the labels' noise.
    rounds : T.
    fresh : a user draws new samples in each round, as in Algorithm 2; else it keeps its first.
    share : r, the share of the users that train in a round.
    """

    d: int
    k: int
    n: int
    m: int
    noise: float
    rounds: int
    fresh: bool = False
    share: float = 0.1

    def federation(self, seeds: Sequence[int]) -> Federation:
        """The setting's federations, one a seed."""
        return Federation(self, Problems.draw(tuple(seeds), self.d, self.k, self.n, self.noise))


@dataclass(frozen=True)
class Federation:
    """One setting under several seeds: truths, samples, the users of each round, the start."""

    setting: Setting
    problems: Problems

    @cached_property
    def samples(self) -> Samples:
        """Each user's first m samples, its only ones if they are not drawn afresh."""
        return self.problems.samples(self.setting.m, 0)

    @cached_property
    def start(self) -> Floats:
        """B^0 by the method of moments, (S, d, k)."""
        return leading_subspace(moments(self.samples), self.setting.n, self.setting.k)

    @cached_property
    def drawn(self) -> list[Ints]:
        """I^1, ..., I^T."""
        own, seeds = self.setting, self.problems.seeds
        return [drawn_users(seeds, own.n, own.share, t) for t in range(1, own.rounds + 1)]

    def batch(self, number: int, users: Ints) -> Samples:
        """The samples of the users of a round."""
        if self.setting.fresh:
            return self.problems.samples(self.setting.m, number, users=users)
        return self.samples.of(users)

    def run(
        self, method: Alternation, watch: Callable[[Floats], object] = lambda body: None
    ) -> Floats:
        """B^T of a method, from the start and over all rounds."""
        return method.run(self.start, self.setting.n, self.batch, self.drawn, watch)
