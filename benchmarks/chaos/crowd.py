"""A crowd at the gate: connections of people who have no key, of five kinds.

    python -m corsage.benchmarks.chaos.crowd HOST PORT KIND COUNT PACE [ADDRESS ...]

opens COUNT of them, PACE a second, from these addresses of this machine, and prints how they ended.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle, islice

TOGETHER = 1500
"""Connections at once: more than the gate has room for."""
LONGEST = 15.0
"""Seconds that a connection is held open, if the gate lets it be."""
CALL = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n"
LARGE = 64 << 20
Writer = asyncio.StreamWriter


async def silence(writer: Writer) -> None:
    """Say nothing."""
    await asyncio.sleep(LONGEST)


async def half(writer: Writer) -> None:
    """Say half of the headers."""
    writer.write(CALL % LARGE)
    await asyncio.sleep(LONGEST)


async def slow(writer: Writer) -> None:
    """Say a letter now and then."""
    for letter in CALL:
        writer.write(bytes([letter]))
        await writer.drain()
        await asyncio.sleep(0.5)


async def large(writer: Writer) -> None:
    """Send messages without end, of which each is empty."""
    writer.write(CALL.replace(b"object", b"messages") % LARGE + b"\r\n")
    for _ in range(LARGE >> 16):
        if writer.is_closing():
            return
        writer.write(b"\x12\x00" * (1 << 15))
        await writer.drain()


async def many(writer: Writer) -> None:
    """Make a call that nobody has signed."""
    writer.write(CALL % 0 + b"\r\n")
    await asyncio.sleep(LONGEST)


KINDS: dict[str, Callable[[Writer], Awaitable[None]]] = {
    "mute": silence,
    "half": half,
    "slow": slow,
    "large": large,
    "many": many,
}


async def attack(
    host: str, port: int, kind: str, count: int, pace: float, addresses: Sequence[str]
) -> Counter[str]:
    """So many connections of a kind, in turn from these addresses; how they ended."""
    free, ends = asyncio.Semaphore(min(TOGETHER, count)), Counter[str]()
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE

    async def one(number: int, address: str) -> None:
        await asyncio.sleep(number / pace)
        async with free:
            try:
                async with asyncio.timeout(LONGEST):
                    ends[await visit(host, port, kind, address, trust)] += 1
            except TimeoutError:
                ends["let be"] += 1
            except OSError as error:
                ends[type(error).__name__] += 1

    each = enumerate(islice(cycle(addresses), count))
    await asyncio.gather(*[one(number, address) for number, address in each])
    return ends


async def visit(host: str, port: int, kind: str, address: str, trust: ssl.SSLContext) -> str:
    """One connection, until it is ended; the code of an answer, if there was one."""
    secure = None if kind == "mute" else trust
    where = {"ssl": secure, "local_addr": (address, 0) if address else None}
    reader, writer = await asyncio.open_connection(host, port, **where)  # type: ignore[arg-type]
    saying = asyncio.ensure_future(KINDS[kind](writer))
    try:
        said = await reader.read(100)
        return said[9:12].decode("ascii", "replace") if said else "closed"
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        writer.transport.abort()


def main(words: list[str]) -> None:
    """Attack, and say how it went."""
    host, port, kind, count, pace, *addresses = words
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.disable()  # asyncio's words on connections that are ended
    began = time.monotonic()
    crowd = attack(host, int(port), kind, int(count), float(pace), addresses or [""])
    ends = asyncio.run(crowd)
    how = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    print(f"{kind}: {ends.total()} connections in {time.monotonic() - began:.1f} s: {how}")


if __name__ == "__main__":
    main(sys.argv[1:])
