"""Data as a caller gives them, and what in them is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corsage.datasets.given.given_samples import Columns


@dataclass(frozen=True)
class Given:
    """Data as a caller gives them.

    Parameters
    ----------
    data : users' samples, one pool of samples, or a frame.
    user, cluster : the column, or one id a sample; of users' samples `{user: cluster}`.
    label, features : columns of the label and of the input.
    labels : "classes" or "numbers", if it is said.
    drop, categories : of a frame, columns that are left out, and numbers that are words.
    missing : what is done about missing cells; rows without a label are left out, or refused.
    """

    data: Any
    user: Any = None
    cluster: Any = None
    label: str = ""
    features: tuple[str, ...] = ()
    labels: str = ""
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: str = "refuse"

    @property
    def columns(self) -> Columns:
        """The columns that are meant."""
        return Columns(self.label, self.features)
