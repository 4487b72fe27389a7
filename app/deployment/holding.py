"""Calls for work that the gate keeps until there is some.

A SuperNode that finds no message sleeps 3 s before it asks again, which in a run is most of a
round. Flower has no setting for it; so the gate keeps the call of a device that has just sent a
reply, and asks in its place, several times a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

HOLD = 20.0
"""Seconds for which a call is kept: its SuperNode gives it up after 30."""
BUSY = 60.0
"""Seconds after its last reply for which a device is taken to be in a run."""
HOLD_PAUSE, LOOKS = 0.1, 20
"""Seconds between two looks for a device, and how often a second it is looked for all of them."""


class Holding:
    """Whose calls are kept, and for how long."""

    def __init__(self) -> None:
        self._replied: dict[int, float] = {}
        self._kept = 0

    def replied(self, node: int) -> None:
        """The SuperLink has taken a reply of a device's."""
        now = time.monotonic()
        self._replied = {n: at for n, at in self._replied.items() if now - at < BUSY}
        self._replied[node] = now

    def is_busy(self, node: int) -> bool:
        """True if a device is in a run, as far as the gate can tell."""
        return time.monotonic() - self._replied.get(node, -BUSY) < BUSY

    async def answer(
        self, ask: Callable[[], Awaitable[httpx.Response]], gone: Callable[[], Awaitable[bool]]
    ) -> httpx.Response:
        """The first answer that has a message; that of the last look if none has one in time.

        `gone` says whether the device has hung up: what is pulled then is lost.
        """
        until = time.monotonic() + HOLD
        self._kept += 1
        try:
            while True:
                answer = await ask()
                if not is_empty(answer) or time.monotonic() > until or await gone():
                    return answer
                await asyncio.sleep(max(HOLD_PAUSE, self._kept / LOOKS))
        finally:
            self._kept -= 1


def is_empty(answer: httpx.Response) -> bool:
    """True if the SuperLink has no message for a device."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from google.protobuf.message import DecodeError

    try:
        found = PullMessagesResponse.FromString(answer.content)
    except DecodeError:
        return False
    return answer.status_code == 200 and not found.messages_list
