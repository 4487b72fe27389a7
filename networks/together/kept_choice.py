"""What was measured of a model is kept on this machine, so that the same command comes to the same
numbers: paths differ in the last bits, and two of about the same speed may change places.

A file a model, named by all that its speed and its path's exactness depend on, in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path as File
from typing import Any

import torch

from corsage.core.files import cache_root, parsed, write_atomically
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.paths import AUTO, PATHS
from corsage.networks.build import build_network, refusing, seeded
from corsage.networks.network import ALONE, Network
from corsage.networks.together.choice import Choice, check_path, choose, untraceable

log = logging.getLogger("corsage")


def choose_again(
    network: Network, shape: tuple[int, ...], num_classes: int, keys: TrainKeys, folder: File
) -> Choice:
    """The path that was measured the first time, as long as it is exact; else one is measured."""
    if network.stackable:
        return choose(network, shape, num_classes, keys)
    file = folder / f"{name_of(network, shape, num_classes, keys)}.json"
    kept = read(file)
    if kept and takes(network, kept.name, shape, num_classes, keys):
        return Choice(kept.name, f"{kept.why}; measured earlier, in {file}")
    found = choose(network, shape, num_classes, keys)
    write(file, found)
    return found


def name_of(network: Network, shape: tuple[int, ...], num_classes: int, keys: TrainKeys) -> str:
    """A hash of the model's modules, its data and training, and the kind of machine."""
    facts = {
        "modules": repr(network.module),
        "numbers": {k: [*v.shape, str(v.dtype)] for k, v in network.module.state_dict().items()},
        "trained": [block.name for block in network.blocks if block.trained],
        "data": [*shape, num_classes],
        "keys": asdict(keys),
        "machine": [platform.machine(), os.cpu_count(), torch.backends.cpu.get_cpu_capability()],
        "torch": [torch.__version__, torch.get_num_threads(), str(network.device)],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def takes(
    network: Network, name: str, shape: tuple[int, ...], num_classes: int, keys: TrainKeys
) -> bool:
    """Whether a path is exact for the model as it is now: its `forward` is in no file's name."""
    path = PATHS.get(name)
    if path is None or (path.channels_last and not network.takes_channels_last):
        return False
    return not path.users or not untraceable(network, shape, num_classes, keys.batch_size)


def read(file: File) -> Choice | None:
    """A kept choice; None if there is none, or it is damaged."""
    try:
        content: Any = parsed(file.read_text(encoding="utf-8"))
        return Choice(str(content["name"]), str(content["why"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(file: File, choice: Choice) -> None:
    """Keep a choice; where that cannot be, the next run measures anew, and a line says so."""
    try:
        write_atomically(file, json.dumps(asdict(choice)))
    except OSError as error:
        log.warning("%s: not written (%s): the next run measures its model anew.", file, error)


@lru_cache(maxsize=8)
def choose_path(
    keys: ModelKeys,
    shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    train: TrainKeys,
    cache: str,
) -> Choice:
    """The path on which a model is trained, measured once a machine; as its key says if it does."""
    if keys.training_path != AUTO:
        network_on_its_path(keys, shape, num_classes, seed, train.device)
        return Choice(keys.training_path, "")
    network = build_network(keys, shape, num_classes, seed, train.device)
    with ALONE, torch.random.fork_rng(devices=[]):
        return choose_again(network, shape, num_classes, train, cache_root(cache) / "paths")


@lru_cache(maxsize=8)
def network_on_its_path(
    keys: ModelKeys, shape: tuple[int, ...], num_classes: int, seed: int, device: str = "cpu"
) -> Network:
    """The network of a configuration for training; ModelError if it cannot take the keys' path."""
    network = build_network(keys, shape, num_classes, seed, device)
    with seeded(seed), refusing(keys):
        check_path(network, keys, shape, num_classes)
    return network
