"""Messages that are too large for what carries them are refused before anybody trains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.ray_engine import RayStore
from corsage.core.errors import ConfigError
from corsage.core.messages.encoding import encode
from corsage.strategies.fedavg import FedAvg
from corsage.strategies.rounds.sizes import PROTOBUF, Carrier, Load, Wire, wire
from tests.support.federations import KINDS, federate, settings

PIECES = 5 * 2**20
MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)
"""Bytes of the model of the small federations."""


class Carried(LocalGrid):
    """Nodes behind something that carries only so much; what went through it is counted."""

    def __init__(self, own: Carrier, nodes: int = 2) -> None:
        super().__init__(app, nodes)
        self.own, self.sent = own, list[Message]()

    def carrier(self) -> Carrier:
        """What messages go through."""
        return self.own

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count those that are of training or evaluation."""
        messages = list(messages)
        self.sent += [m for m in messages if m.metadata.message_type.startswith(("train", "eval"))]
        return super().push_messages(messages)


class Noting:
    """Carries everything and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Load] = []

    def refusal(self, load: Load) -> str:
        """Nothing is refused."""
        self.seen.append(load)
        return ""

    def warning(self, load: Load) -> str:
        """Nothing to say."""
        return ""


def test_a_store_and_a_disk_that_are_too_small_end_the_run_before_its_first_message() -> None:
    """The size, both limits, and what helps; nobody was asked to train."""
    grid = Carried(RayStore(1000, 2000, workers=2))
    with pytest.raises(ConfigError) as error:
        federate("fedavg", grid=grid)
    size = 3 * MODEL / 1e6  # down, and a sum in double precision up
    assert f"reply take {size:,.1f} MB; 2 at once" in str(error.value)
    assert "0 MB of memory and 0 MB of disk" in str(error.value)
    assert "a model of which less travels" in str(error.value)
    assert not grid.sent


def test_what_goes_through_the_disk_is_said_once_and_changes_nothing() -> None:
    _, plain, _ = federate("fedavg", nodes=2)
    _, slow, notes = federate("fedavg", grid=Carried(RayStore(1000, 10**9, workers=2)))
    assert len([text for text in notes.notes if "they go through the disk" in text]) <= 2
    assert any("they go through the disk, which is slow" in text for text in notes.notes)
    for one, other in zip(plain.json(), slow.json(), strict=True):
        assert one["per_user"] == other["per_user"]


def test_rows_of_users_name_the_keys_that_make_them_fewer() -> None:
    """Clusters' models come one row a user: half as many users in a message are half of it."""
    with pytest.raises(ConfigError, match="for 6 users of a node and its reply") as error:
        federate("cfl", grid=Carried(RayStore(1000, 2000, workers=1), 1))
    assert "fewer users in a message (more nodes: num-nodes; fraction-train)" in str(error.value)
    with pytest.raises(ConfigError, match=r"for [2-5] users of a node"):
        federate("cfl", grid=Carried(RayStore(1000, 2000, workers=1), 3))


AVERAGING = ["fedavg", "fedrep", "ditto", "scaffold", "ifca", "cfl"]


@pytest.mark.parametrize(
    ("name", "more"),
    [(name, {}) for name in (*AVERAGING, "fedmtl")]  # which has no average to be made robust
    + [(name, {"robust": "median"}) for name in AVERAGING],
)
def test_what_is_said_before_a_run_is_what_travels(name: str, more: dict[str, str]) -> None:
    """No message or reply of training takes more than the first load says, nor much less."""
    noting = Noting()
    grid = Carried(noting, 1)
    kept: list[int] = []
    answered = grid.pull_messages

    def pull(message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(answered(message_ids))
        kept.extend(numbers_in(message) for message in found)
        return found

    grid.pull_messages = pull  # type: ignore[method-assign]
    federate(name, grid=grid, num_rounds=1, **more)
    both = numbers_in(grid.sent[0]) + next(size for size in kept if size)
    assert both <= noting.seen[0].total <= 1.5 * both  # a mean may be in double precision


@pytest.mark.parametrize("name", KINDS)
def test_every_message_of_every_method_is_weighed_and_nothing_is_changed(name: str) -> None:
    noting = Noting()
    grid = Carried(noting)
    _, weighed, _ = federate(name, grid=grid, num_rounds=1)
    _, plain, _ = federate(name, nodes=2, num_rounds=1)
    for one, other in zip(plain.json(), weighed.json(), strict=True):
        assert one["per_user"] == other["per_user"] and one["loss"] == other["loss"]
    sizes = [numbers_in(message) for message in grid.sent]
    assert max(load.total for load in noting.seen) >= 0.99 * max(sizes) > 0 or not max(sizes)
    assert len(noting.seen) >= len(sizes)


def numbers_in(message: Message) -> int:
    """Bytes of the numbers in a message's arrays, without their headers."""
    records = message.content.array_records.values()
    return sum(array.numpy().nbytes for record in records for array in record.values())


def test_flower_cuts_arrays_into_pieces() -> None:
    """So no array is too much for it; this fails where Flower does so no more."""
    content = RecordDict({"arrays": encode({"model": np.arange(4_000_000, dtype=np.float32)})})
    pieces = [len(one.deflate()) for one in get_all_nested_objects(content).values()]
    assert max(pieces) <= PIECES + 1000 and sum(pieces) > 16_000_000
    assert wire() == Wire(PROTOBUF, PIECES)
    huge = Load(10**12, 0, 1, 10**12)
    assert not wire().refusal(huge) and not wire().warning(huge)


def test_pieces_that_are_too_large_are_refused_with_the_variable() -> None:
    own = Wire(most=1000, piece=2000)
    with pytest.raises(ConfigError, match="FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE") as error:
        federate("fedavg", grid=Carried(own))
    assert "a request of Flower's takes 0.0 MB: lower that variable on all machines" in str(
        error.value
    )
    federate("fedavg", grid=Carried(replace(own, piece=500)), num_rounds=1)


class Far(LocalGrid):
    """Nodes whose data are not the server's."""

    simulated = False


def test_devices_have_flower_s_limits_and_this_process_none() -> None:
    for grid, wanted in ((LocalGrid(app, 1), None), (Far(app, 1), wire())):
        strategy = FedAvg(settings("fedavg"))
        strategy.begin(grid)
        scales = strategy.members.scales
        assert (scales and scales.carrier) == wanted
    assert issubclass(Carried, Grid)
