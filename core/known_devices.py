"""Records of devices that a run remembers: the owners of users' ids, and how nodes behaved."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Owner:
    """A device, as far as the server knows it.

    Parameters
    ----------
    key : a digest of its key, none if the server sees no key.
    proof : a digest of its proof, none if it gave none.
    """

    key: str = ""
    proof: str = ""


NOBODY = Owner()
"""A device that could not be known again; all users of a simulation are on such."""


@dataclass
class Standing:
    """A record of how a user's node has behaved.

    Parameters
    ----------
    key : the device, while it is the same; one that is new begins anew.
    silent, refused : replies that did not come, or that the schema refused.
    doubt : signs of life that are missing until it is trusted again; each silence adds more.
    level : how often it was set aside, less what it made good since.
    until : the last round of its pause.
    pauses : rounds that it was set aside for, in all.
    """

    key: str = ""
    silent: int = 0
    refused: int = 0
    doubt: int = 0
    level: int = 0
    until: int = 0
    pauses: int = 0


@dataclass
class KnownDevices:
    """A run's memory of its devices.

    Parameters
    ----------
    owners : whose each user's id is, where a device can be known again.
    standings : how the nodes of users behaved that did not always do what they had to.
    """

    owners: dict[str, Owner] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
