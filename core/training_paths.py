"""Training paths: how a model is trained at a node, a name out of a table, chosen once a run.

Every path comes to the same numbers but for the order in which floats are summed. So that not even
that differs, a run keeps to one: all of its nodes, on every engine, also when it is resumed.
"""

from __future__ import annotations

from dataclasses import dataclass

AUTO, LAYERS, LOOP = "auto", "layers", "loop"
TOGETHER_USERS = (4, 10)
"""How many users may be trained together through a model's own `forward`."""
CHANNELS_LAST = "-channels-last"


@dataclass(frozen=True)
class Path:
    """One way to train the users of a node.

    Parameters
    ----------
    users : how many at once; 0: one by one, through torch's autograd.
    channels_last : images lie in memory with their channels last.
    """

    users: int
    channels_last: bool = False

    @property
    def name(self) -> str:
        """As the key `training-path` has it."""
        return (
            f"together-{self.users}" if self.users else LOOP
        ) + CHANNELS_LAST * self.channels_last


PATHS = {
    p.name: p for last in (False, True) for n in (0, *TOGETHER_USERS) for p in (Path(n, last),)
}
"""All of them by name, but `layers`: the kernels of plain layers, of which a rule says how many
users they train at once."""
CHOICES = (AUTO, LAYERS, *PATHS)


@dataclass(frozen=True)
class Choice:
    """A path by its name, and what spoke for it."""

    name: str
    why: str
