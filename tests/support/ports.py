"""Who listens where, as the kernel tells it."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path


def sockets() -> dict[str, tuple[str, int]]:
    """Address and port of every listening socket of this machine, by its inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, _, port = fields[1].partition(":")
                found[fields[9]] = spelled(address), int(port, 16)
    return found


def spelled(address: str) -> str:
    """An address from the kernel's spelling: words of four bytes, each backwards."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    return str(ip_address(b"".join(words)))


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Where these processes listen."""
    there, found = sockets(), set()
    for pid in pids:
        try:
            handles = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for handle in handles:
            try:
                target = str(handle.readlink())
            except OSError:
                continue
            inode = target.removeprefix("socket:[").removesuffix("]")
            if inode in there:
                found.add(there[inode])
    return found


def on_loopback(address: str) -> bool:
    """Whether nobody outside this machine reaches an address."""
    found = ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
