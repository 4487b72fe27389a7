"""Several users trained at once: what attaches to `networks/local_training.py` stands here."""

from corsage.networks.together.chain import plain_layers
from corsage.networks.together.parts import (
    several_losses,
    train_several,
    train_several_heads,
    users_of,
)
from corsage.networks.together.path_choice import choose_path, network_on_its_path

__all__ = [
    "choose_path",
    "network_on_its_path",
    "plain_layers",
    "several_losses",
    "train_several",
    "train_several_heads",
    "users_of",
]
