"""What can be told of a grid: whose its nodes are, and whether others may come."""

from __future__ import annotations

from flwr.serverapp import Grid


def is_simulation(grid: Grid) -> bool:
    """Whether the nodes are this machine's own, so that no stranger is among them."""
    # By its name: its module takes half a second to load, and on devices nobody needs it.
    return any(base.__name__ == "InMemoryGrid" for base in type(grid).__mro__)


def is_at_home(grid: Grid) -> bool:
    """Whether all users' data are the server's own anyway: a simulation, by whatever engine."""
    return bool(getattr(grid, "simulated", False)) or is_simulation(grid)


def is_closed(grid: Grid) -> bool:
    """Whether all nodes are there from the beginning."""
    return bool(getattr(grid, "closed", False)) or is_simulation(grid)
