"""Several users trained at once: all that other folders import of it stands here."""

from corsage.networks.together.choice import choose_path, network_on_its_path
from corsage.networks.together.gradients import Losses, UserLosses, copy_statistics
from corsage.networks.together.parts import train_bodies, train_heads, train_models
from corsage.networks.together.steps import in_groups

__all__ = [
    "Losses",
    "UserLosses",
    "choose_path",
    "copy_statistics",
    "in_groups",
    "network_on_its_path",
    "train_bodies",
    "train_heads",
    "train_models",
]
