"""Questions to a grid: whose its nodes are, and whether others may come."""

from __future__ import annotations

from flwr.serverapp import Grid


def is_at_home(grid: Grid) -> bool:
    """True if all users' data are the server's own anyway: a simulation, by whatever engine.

    A grid of ours says so; one of Flower's simulations holds the state of all nodes itself.
    """
    return bool(getattr(grid, "simulated", hasattr(grid, "state")))


def is_closed(grid: Grid) -> bool:
    """True if all nodes are there from the beginning, and each of them replies."""
    return bool(getattr(grid, "closed", hasattr(grid, "state")))
