"""Time that passes only when somebody sleeps: how busy the machine is does not matter."""

from __future__ import annotations

import pytest

from corsage.strategies.devices import devices, exchange
from corsage.strategies.rounds import reception, turns
from tests.support.silent import Clock


def stopped(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the server waits for replies and for nodes."""
    clock = Clock()
    for module in (exchange, devices, reception, turns):
        monkeypatch.setattr(module, "time", clock)
    return clock
