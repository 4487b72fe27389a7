"""The connections to the gate: how many there may be, and for how long.

Who opens a connection may be anybody, so it is a *newcomer* until a device's key has signed a call
on it (`Callers`). Newcomers are few, of each address and in all, and have seconds; of too many the
oldest of the most crowded address goes: a device is done with its first call by then. Connections
of devices are counted by device, no crowd moves them, and comes from where no device was.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from math import inf
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from corsage.app.deployment.keys import Shown

PATIENCE = 10.0
"""Seconds for a newcomer's handshake and first call, and for the headers of each later one."""
HEAD, HEADERS = 1 << 13, 100
"""Bytes and headers before a call, of which thousands cost seconds: a SuperNode's has a dozen."""
SWEEP_SECONDS = 0.25
"""Seconds between two looks for those whose time is up, and for another certificate."""
REFILL, STRANGERS_REFILL = 3.0, 15.0
"""Seconds in which an address, and all strangers, may fill their room again: 2 ms of CPU each."""
FRIEND = 3600.0
"""Seconds for which an address is one where a device was."""
RESET = struct.pack("ii", 1, 0)
"""What makes the system end a connection by a reset."""
Peer = tuple[Any, ...]


@dataclass(frozen=True)
class Room:
    """Room for so many connections.

    Parameters
    ----------
    each : newcomers of one address.
    strangers : newcomers of all addresses where no device was.
    device : of one device, which has two or three; its oldest goes where it opens more.
    """

    each: int = 64
    strangers: int = 1024
    device: int = 8


@dataclass(eq=False)
class Visit:
    """One connection, from when the system has it.

    Parameters
    ----------
    until : when it ends, if it has not shown a device's key by then.
    headers_until : when it ends, if the headers of the call under way are not whole by then.
    """

    socket: socket.socket
    peer: Peer
    address: str
    until: float
    headers_until: float = inf
    device: str = ""
    work: asyncio.Task[None] | None = None
    transport: asyncio.Transport | None = None

    def end(self) -> None:
        """Break it off, by a reset: after one a SuperNode tries again, which it does not do where
        TLS ends too early."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if self.transport is not None:
            self.transport.abort()
        elif self.work is not None:
            self.work.cancel()
        else:
            self.socket.close()


@dataclass
class Bucket:
    """Room for so many at once, and for as many again within some seconds."""

    most: float
    left: float
    at: float
    refill: float = REFILL

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self.left = min(self.most, self.left + (now - self.at) * self.most / self.refill)
        self.at = now
        taken = self.left >= 1
        self.left -= taken
        return taken


@dataclass
class Crowd:
    """All who are connected, and a rule for who may be."""

    room: Room
    clock: Callable[[], float] = time.monotonic
    newcomers: dict[str, dict[Visit, None]] = field(default_factory=lambda: defaultdict(dict))
    devices: dict[str, dict[Visit, None]] = field(default_factory=lambda: defaultdict(dict))
    friends: dict[str, float] = field(default_factory=dict)
    refused: int = 0
    ended: int = 0

    def __post_init__(self) -> None:
        self._ports: dict[Peer, Visit] = {}
        self._buckets: dict[str, Bucket] = {}
        most = float(self.room.strangers)
        self._strangers = Bucket(most, most, self.clock(), STRANGERS_REFILL)

    def come(self, one: socket.socket, peer: Peer) -> Visit | None:
        """A connection that may stay for now; None if there have been too many."""
        address, now = place_of(str(peer[0])), self.clock()
        visit = Visit(one, peer[:2], address, now + PATIENCE)
        if not self._may_come(address, now):
            self.refused += 1
            visit.end()
            return None
        if (before := self._ports.get(visit.peer)) is not None:
            self._end(before)  # that one is over, though nothing has told so yet
        strangers = {
            name: len(own) for name, own in self.newcomers.items() if name not in self.friends
        }
        if len(self.newcomers[address]) >= self.room.each:
            self._end(next(iter(self.newcomers[address])))
        elif address not in self.friends and sum(strangers.values()) >= self.room.strangers:
            self._end(next(iter(self.newcomers[max(strangers, key=strangers.__getitem__)])))
        self.newcomers[address][visit] = None
        self._ports[visit.peer] = visit
        return visit

    def _may_come(self, address: str, now: float) -> bool:
        """True if an address, and all strangers together, have not had their share just now."""
        most = float(self.room.each)
        own = self._buckets.setdefault(address, Bucket(most, most, now)).take(now)
        return own and (address in self.friends or self._strangers.take(now))

    def befriend(self, address: str) -> None:
        """A device was here: those who come from this address are no strangers."""
        self.friends[address] = self.clock() + FRIEND

    def known(self, peer: Peer | None, device: str) -> None:
        """A device's key has signed a call on this connection."""
        visit = self._ports.get(tuple(peer)) if peer else None
        if visit is None:
            return
        self.befriend(visit.address)
        if visit.device == device:
            return
        self._leave(visit)
        if len(self.devices[device]) >= self.room.device:
            self._end(next(iter(self.devices[device])))
        visit.device, visit.until = device, inf
        self.devices[device][visit] = None
        self._ports[visit.peer] = visit

    def left(self, visit: Visit) -> None:
        """A connection is over."""
        if self._ports.get(visit.peer) is visit:
            self._leave(visit)

    def _leave(self, visit: Visit) -> None:
        """It is in no list any more."""
        lists, name = self.newcomers, visit.address
        if visit.device:
            lists, name = self.devices, visit.device
        lists[name].pop(visit, None)
        if not lists[name]:
            del lists[name]
        self._ports.pop(visit.peer, None)

    def _end(self, visit: Visit) -> None:
        """Break one off."""
        self.ended += 1
        self._leave(visit)
        visit.end()

    def sweep(self) -> None:
        """End those whose time is up, and forget what no longer matters."""
        now = self.clock()
        for visit in list(self._ports.values()):
            if min(visit.until, visit.headers_until) < now:
                self._end(visit)
        self._buckets = {a: b for a, b in self._buckets.items() if now - b.at < REFILL}
        self.friends = {a: until for a, until in self.friends.items() if until > now}


def place_of(host: str) -> str:
    """An address as it is counted: of version 6 a whole network, which one machine has."""
    found = ip_address(host.partition("%")[0])
    if isinstance(found, IPv6Address) and not found.ipv4_mapped:
        return found.exploded[:19]
    return host


class Speaker(H11Protocol):
    """HTTP on one connection, with a deadline for headers."""

    visit: Visit
    crowd: Crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        self.visit.transport = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Read on; what has begun and is no whole call yet has until its deadline."""
        super().data_received(data)
        late = min(self.visit.headers_until, self.crowd.clock() + PATIENCE)
        self.visit.headers_until = late if self.conn.their_state is h11.IDLE else inf

    def handle_events(self) -> None:
        """Read on, unless what is said before a call is longer than a SuperNode's."""
        if self.conn.their_state is h11.IDLE:
            head = self.conn.trailing_data[0].partition(b"\r\n\r\n")[0]
            if len(head) > HEAD or head.count(b"\n") > HEADERS:
                self.crowd.ended += 1
                self.send_400_response("too long")
                return
        super().handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self.crowd.left(self.visit)


class Door(uvicorn.Server):
    """The server of the gate, which asks the crowd before it shakes a hand."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd) -> None:
        super().__init__(config)
        self.crowd, self._tasks = crowd, list[asyncio.Task[None]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets=[])
        self._tasks = [asyncio.create_task(self._listen(one)) for one in sockets or []]
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more."""
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    async def _listen(self, listener: socket.socket) -> None:
        """Take each connection that comes."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                one, peer = await loop.sock_accept(listener)
            except OSError:  # it is gone already, or no file is left
                await asyncio.sleep(SWEEP_SECONDS)
                continue
            if (visit := self.crowd.come(one, peer)) is not None:
                visit.work = loop.create_task(self._greet(visit))
            await asyncio.sleep(0)  # those who are in come first

    async def _greet(self, visit: Visit) -> None:
        """Shake hands, and let it speak."""

        def speaker() -> Speaker:
            made = Speaker(self.config, self.server_state, self.lifespan.state)
            made.visit, made.crowd = visit, self.crowd
            return made

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                speaker, visit.socket, ssl=self.config.ssl, ssl_handshake_timeout=PATIENCE
            )
        except OSError:
            self.crowd.left(visit)

    async def _sweep(self) -> None:
        """Look around."""
        shown = Shown(self.config)
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.crowd.sweep()
            shown.look()
