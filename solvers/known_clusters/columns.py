"""Quadratics of several units beside each other, whose sums are one symmetric product.

x_i ~ N(w, rho I) is integrated out of 1/2 x_i'A_i x_i - b_i'x_i. With eigenvectors Q_i of A_i,
eigenvalues W_i and slopes s_i = Q_i'b_i, all beside each other as columns,

    sum P_i = Q diag(W/(1 + rho W)) Q',    sum q_i = Q (s/(1 + rho W)).

Where only some coordinates deviate (`Partial`) W and s are those of DAD and Db, and with C = A D Q

    sum P_i = sum A_i - C diag(rho/(1 + rho W)) C',    sum q_i = sum b_i - C (rho s/(1 + rho W)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.likelihood import Level
from corsage.solvers.known_clusters.spectra import Partial, Spectra


@dataclass(frozen=True)
class Columns:
    """Units (n) side by side, perhaps at several places (G,) of a grid, which is the first axis.

    Parameters
    ----------
    values, slopes : W and s (..., n, d).
    across : Q or C (..., d, n, d).
    yy : squares (..., n).
    whole : of a partial one A and b (..., n, d, d), (..., n, d); None: all coordinates deviate.
    """

    values: Floats
    slopes: Floats
    across: Floats
    yy: Floats
    whole: tuple[Floats, Floats] | None

    @classmethod
    def of(cls, a: Floats, b: Floats, yy: Floats, varies: Floats | None) -> Columns:
        """Of A (..., n, d, d) and b (..., n, d); coordinates whose `varies` is 1 deviate."""
        own: Spectra | Partial
        if varies is None:
            own = Spectra.of(a, b)
            across, whole = own.vectors, None
        else:
            own = Partial.of(a, b, varies)
            across, whole = own.across, (a, b)
        across = np.ascontiguousarray(np.moveaxis(across, -3, -2))
        return cls(own.values, own.slopes, across, yy, whole)

    def total(self, rho: Floats | float) -> Level:
        """The sums over all units, rho being a number, or one a place (G,)."""
        rho = np.asarray(rho, np.float64)[..., None, None]
        growth = 1 + rho * self.values
        share = (self.values if self.whole is None else rho) / growth
        p, q = self._products(share, self.slopes / growth * (1 if self.whole is None else rho))
        if self.whole is not None:
            p, q = self.whole[0].sum(-3) - p, self.whole[1].sum(-2) - q
        explained = rho * np.square(self.slopes) / growth
        yy = self.yy.sum(-1) - explained.sum((-2, -1))
        return Level(p, q, yy, np.log(growth).sum((-2, -1)))

    def _products(self, share: Floats, slopes: Floats) -> tuple[Floats, Floats]:
        """The columns times a share of each, times themselves (..., d, d); and times slopes."""
        scaled = self.across * np.sqrt(share)[..., None, :, :]
        flat = scaled.reshape(*scaled.shape[:-2], -1)
        along = slopes.reshape(*slopes.shape[:-2], -1, 1)
        return flat @ flat.mT, (self.across.reshape(flat.shape) @ along)[..., 0]

    def told(self) -> Columns:
        """The same without columns that say nothing, of units at one place: as one unit.

        A user with fewer records than coefficients has no more of them than records.
        """
        told = (self.values > 0) | (self.slopes != 0)
        yy = self.yy.sum(keepdims=True)
        whole = self.whole and (self.whole[0].sum(0)[None], self.whole[1].sum(0)[None])
        across = np.ascontiguousarray(self.across[:, told])[:, None]
        return Columns(self.values[told][None], self.slopes[told][None], across, yy, whole)

    def unit(self, j: int) -> Columns:
        """One unit alone."""
        whole = self.whole and (self.whole[0][..., [j], :, :], self.whole[1][..., [j], :])
        across, yy = self.across[..., [j], :], self.yy[..., [j]]
        return Columns(self.values[..., [j], :], self.slopes[..., [j], :], across, yy, whole)

    def picked(self, picks: Ints) -> Columns:
        """Each unit at a place of its own: one place (1, ...)."""
        at = picks, np.arange(len(picks))
        across = np.moveaxis(self.across[at[0], :, at[1]], 0, 1)
        whole = self.whole and (self.whole[0][at][None], self.whole[1][at][None])
        rows = self.values[at][None], self.slopes[at][None]
        return Columns(*rows, np.ascontiguousarray(across)[None], self.yy[at][None], whole)
