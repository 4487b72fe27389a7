"""The two settings of the known-clusters experiment, and the errors that are known of them.

Lyu et al. 2022, section 6.1, and the same with variances that differ. The reference was measured
outside of this library, as means of 5 runs with draws of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.datasets.hierarchical import draw
from corsage.experiments.known_clusters import methods
from corsage.experiments.known_clusters.methods import Data, Method

EXACT, ORACLE, REML = "exact, lambda=gamma=1", "true variances", "one round, REML"
GRID = "9 x 9 values, CV"
ONE_COIN = "one coin, 50,000 steps"
Reference = dict[str, tuple[float, ...]]
"""By method, one number a m."""


@dataclass(frozen=True)
class Setting:
    """A table: data, methods, and what is known of them.

    Parameters
    ----------
    short, title : its name, and what it is.
    noise, user_variance, cluster_variance : sigma^2, limits of sigma_j^2, and that of the centres.
    samples : values of m.
    methods : by name.
    reference : mean errors by method, one a m.
    width : half a band, as a share of the reference, where there is no standard deviation.
    deviations : standard deviations of a mean of 5 runs, by method and m.
    """

    short: str
    title: str
    noise: float
    user_variance: tuple[float, float]
    cluster_variance: float
    samples: tuple[int, ...]
    methods: dict[str, Method]
    reference: Reference
    width: float
    deviations: dict[tuple[str, int], float]

    def data(self, seed: int, m: int) -> Data:
        """One draw."""
        drawn = draw(
            seed,
            samples=m,
            noise=self.noise,
            user_variance=self.user_variance,
            cluster_variance=self.cluster_variance,
        )
        return Data(seed, drawn, self.noise, self.cluster_variance)

    def known(self, name: str) -> dict[int, float]:
        """The reference of a method, by m."""
        return dict(zip(self.samples, self.reference.get(name, ()), strict=False))


PAPER = Setting(
    "paper",
    "variances 1, as in the paper",
    1.0,
    (1.0, 1.0),
    1.0,
    (1, 5, 10, 25, 100, 200),
    {
        "local": methods.local,
        "single": methods.single,
        "single cluster, CV": methods.single_cluster,
        EXACT: methods.exact,
        ONE_COIN: methods.one_coin,
        REML: methods.reml,
    },
    {
        "local": (6.01, 5.40, 4.50, 2.06, 0.497, 0.331),
        "single": (6.24, 6.16, 6.19, 6.09, 6.18, 6.15),
        "single cluster, CV": (6.09, 5.37, 4.44, 1.69, 0.495, 0.331),
        EXACT: (5.53, 4.24, 3.40, 1.55, 0.493, 0.331),
        ONE_COIN: (5.62, 4.36, 3.41, 1.55, 0.493, 0.331),
        REML: (5.647, 4.214, 3.399, 1.544),
    },
    0.03,
    {
        ("local", 10): 0.04,
        ("single", 10): 0.05,
        ("single cluster, CV", 10): 0.04,
        (EXACT, 10): 0.02,
        ("local", 100): 0.002,
        ("single", 100): 0.05,
        (EXACT, 100): 0.002,
    },
)
UNEQUAL = Setting(
    "unequal",
    "unequal variances",
    4.0,
    (0.05, 3.0),
    2.0,
    (1, 5, 10, 25),
    {
        "local": methods.local,
        EXACT: methods.exact,
        GRID: methods.searched,
        ORACLE: methods.oracle,
        REML: methods.reml,
    },
    {
        "local": (7.098, 6.510, 5.614, 4.141),
        EXACT: (5.779, 3.631, 3.210, 2.670),
        GRID: (5.623, 3.486, 3.033, 2.213),
        ORACLE: (5.460, 3.416, 2.897, 1.950),
        REML: (5.588, 3.440, 2.904, 1.958),
    },
    0.10,
    {},
)
PRINTED = {
    10: {"local": (4.50, 8.224), "single": (6.11, 9.025), "single cluster, CV": (4.46, 8.112)},
    100: {"local": (0.494, 0.768), "single": (6.243, 9.479), "single cluster, CV": (0.494, 0.763)},
}
PRINTED[10][EXACT], PRINTED[100][EXACT] = (3.46, 8.676), (0.489, 0.748)
"""Table 1 of the paper: the average, and the largest error of a user."""
