"""Owners of users' ids: an id is the device's that first had it in the run.

A device is known by its key, if Flower has one of it, and by a proof that only it can give: a
word made of a secret in its state-dir and the name of the run. Flower gives a SuperNode without a
key of its own a new one at every start, so a key that changed says nothing, unless the keys are
registered.
"""

from __future__ import annotations

from hashlib import blake2b

from corsage.core.known_devices import NOBODY, KnownDevices, Owner


class Owners:
    """Tells whose a user's id is.

    Parameters
    ----------
    known : the owners that the run remembers.
    registered : keys are registered, so they stay: an id is never given to another key.
    """

    def __init__(self, known: KnownDevices, registered: bool = False) -> None:
        self._known, self._registered = known, registered

    @property
    def known(self) -> bool:
        """True if the run remembers any owner."""
        return bool(self._known.owners)

    def is_same(self, user: str, claim: Owner) -> bool:
        """True if the device that claims an id is known to be the one that has it."""
        known = self._known.owners.get(user, NOBODY)
        by_key = bool(claim.key) and claim.key == known.key
        return by_key or (bool(claim.proof) and claim.proof == known.proof)

    def refusal(self, user: str, claim: Owner) -> str:
        """The reason why only its owner may have an id, though that is not there; or nothing."""
        known = self._known.owners.get(user)
        if known is None or self.is_same(user, claim):
            return ""
        if known.proof:
            return "it belongs to a device with another state-dir in this run"
        return "it belongs to another key in this run" if self._registered and known.key else ""

    def enter(self, user: str, claim: Owner) -> None:
        """Remember who has an id now, if the device could be known again."""
        if claim != NOBODY:
            known = self._known.owners.get(user, NOBODY) if self.is_same(user, claim) else NOBODY
            self._known.owners[user] = Owner(claim.key or known.key, claim.proof or known.proof)


def digest(word: bytes | str) -> str:
    """A short name of a word, which does not tell it; none of an empty one."""
    data = word.encode() if isinstance(word, str) else word
    return blake2b(data, digest_size=12).hexdigest() if data else ""
