"""What Weights & Biases has on disk of a run that was offline: its records, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
"""A log as LevelDB has it: blocks of records, each of which may be in several pieces."""
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Every record of a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2 as messages

    for raw in pieces(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(raw)
        yield record


def pieces(raw: bytes) -> Iterator[bytes]:
    """The bytes of each record."""
    place, held = HEADER, b""
    while place + HEADER <= len(raw):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        held += raw[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (WHOLE, LAST):
            yield held
            held = b""


def history(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Every step that was told, in order, of all times that a run was begun or resumed."""
    import json

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                values = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
                found.append((record.history.step.num, values))
    return found
