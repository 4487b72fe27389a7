"""A run's data are known again by marks: of each user a hash of its samples.

A device's has the device's own secret in it: it tells that samples have changed, and no server can
find out by it whether they are what it guesses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.errors import OtherData
from corsage.core.messages.replies import in_reading_order, name_users
from corsage.strategies.rounds.ledger import Ledger

if TYPE_CHECKING:
    from corsage.datasets.user_data import FederatedData
    from corsage.strategies.rounds.job import Job

UNUSED_BITS = 11
"""Of 64: what is left is a whole number that any message may hold."""


def marks(data: FederatedData, users: Iterable[str], secret: bytes = b"") -> list[int]:
    """A number of each of some users: another if a sample is, or is held out or not."""
    units = [np.asarray(unit, np.float64).tolist() for unit in (data.shift, data.scale)]
    kinds = [(array.dtype.str, array.shape[1:]) for array in (data.x, data.y)]
    head = json.dumps([kinds, units, data.facts and data.facts.json()])
    common = blake2b(head.encode(), digest_size=8, key=secret)
    if data.vectors is not None:
        common.update(data.vectors.tobytes())
    found = []
    for start, middle, end in data.bounds[data.places([*users])].tolist():
        own = common.copy()
        own.update(b"%d" % (middle - start))
        for array in (data.x, data.y):
            own.update(array[start:end].tobytes())
        found.append(int.from_bytes(own.digest(), "little") >> UNUSED_BITS)
    return found


def mark_of(each: Mapping[str, int], users: Iterable[str]) -> str:
    """The mark of some users' data together; empty if there is none of some."""
    known = in_reading_order(users)
    if not known or any(user not in each for user in known):
        return ""
    numbers = np.fromiter(map(each.__getitem__, known), np.int64, len(known))
    return blake2b(json.dumps(known).encode() + numbers.tobytes(), digest_size=16).hexdigest()


def check(job: Job) -> None:
    """OtherData if the data of a simulation are not what the run began with.

    Devices go on with what they have: theirs may grow while a deployment runs.
    """
    known, here, now = job.built.data, job.members.devices is None, Ledger()
    for guest in job.members.roster.guests.values():
        if guest.said.marks:
            now.put(guest.said.users, guest.said.marks)
    if why := differing(known, now, here):
        if here:
            raise OtherData(f"the data are not those that the run began with: {why}.")
        job.note(f"samples are not those that the run began with: {why}")
    job.built.data = now if here else Ledger({**known, **now})


def differing(known: Mapping[str, int], now: Mapping[str, int], all_are_there: bool) -> str:
    """Users whose data are not as they were, in words; nothing without any, or any mark."""
    if not known or not now or known == now:
        return ""
    who = {"changed": [u for u in known if now.get(u, known[u]) != known[u]]}
    if all_are_there:
        who |= {"new": [*(now.keys() - known.keys())], "gone": [*(known.keys() - now.keys())]}
    return ", ".join(f"{name_users(in_reading_order(us))} {how}" for how, us in who.items() if us)
