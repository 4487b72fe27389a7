"""Time that passes only when somebody sleeps: how busy the machine is does not matter."""

from __future__ import annotations

import pytest

from corsage.strategies.rounds import exchange, roster


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def stopped(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the server waits for replies and for nodes."""
    clock = Clock()
    for module in (exchange, roster):
        monkeypatch.setattr(module, "time", clock)
    return clock
