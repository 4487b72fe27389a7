"""Time that passes only when somebody sleeps: how busy the machine is does not matter."""

from __future__ import annotations

import pytest

from corsage.strategies.devices import devices, exchange
from corsage.strategies.rounds import reception, turns


class Clock:
    """Stands in for the module `time`: it passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def stopped(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the server waits for replies and for nodes."""
    clock = Clock()
    for module in (exchange, devices, reception, turns):
        monkeypatch.setattr(module, "time", clock)
    return clock
