"""The models of a strategy's rows, put together from what its nodes left: one file a row."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context

from corsage.app.output.summary import human_bytes
from corsage.app.results.header import Header
from corsage.app.results.known_models import note_model
from corsage.app.results.rowfile import RowFile, joined
from corsage.app.run.server_models import held
from corsage.app.states.pieces import FOLDER, pieces_in, taken_from
from corsage.core.files import clear_temporaries, delete, sync_folder, write_atomically
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.evaluations import Delivery

MODEL_ENDING = ".safetensors"


def write_models(strategy: Strategy[Any, Any], folder: Path) -> None:
    """In a strategy's folder, the file of each row that was delivered; no pieces are left."""
    folder = folder / FOLDER
    if not strategy.members.simulated:
        write_held(strategy, folder)
    if not folder.is_dir():
        return
    clear_temporaries(folder)
    left = pieces_in(folder)
    for row, pieces in of_rows(strategy, left).items():
        target = folder / f"{row}{MODEL_ENDING}"
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        joined(head_of(strategy, strategy.deliveries[row], pieces), pieces, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_folder(folder)
    delete(*(path for paths in left.values() for path in paths))


def write_held(strategy: Strategy[Any, Any], folder: Path) -> None:
    """Write the users' models that the server of a deployed run has."""
    for row, delivery in strategy.deliveries.items():
        data = held(strategy, delivery)
        write_atomically(folder / f"{row}{MODEL_ENDING}", data, durable=True)


def models_in_memory(
    strategy: Strategy[Any, Any], contexts: Iterable[Context]
) -> dict[str, RowFile]:
    """The same of a run without a folder, by the rows' names."""
    left: dict[str, list[bytes]] = {}
    for context in contexts:
        left |= taken_from(context)
    return {
        row: RowFile(joined(head_of(strategy, strategy.deliveries[row], pieces), pieces, None))
        for row, pieces in of_rows(strategy, left).items()
    }


def of_rows(
    strategy: Strategy[Any, Any], left: Mapping[str, Sequence[Path | bytes]]
) -> dict[str, list[RowFile]]:
    """The pieces of each row that was delivered: those that answer its messages."""
    rows = {
        row: [RowFile(piece) for token in delivery.tokens for piece in left.get(token, [])]
        for row, delivery in strategy.deliveries.items()
    }
    return {row: pieces for row, pieces in rows.items() if pieces}


def head_of(strategy: Strategy[Any, Any], delivery: Delivery, pieces: Sequence[RowFile]) -> Header:
    """The header of a row's file; a line if users' models are not in it for want of room."""
    first, kept = pieces[0].header, all(piece.header.kept for piece in pieces)
    size = sum(piece.header.size for piece in pieces)
    clusters = strategy.user_clusters(delivery.row)
    note_model((first.combination or {}).get("rule", ""))
    if not kept and strategy.config.run.keep_models == "auto":
        strategy.job.note(
            f"{delivery.row}: the users' models take {human_bytes(size)} and are not kept; "
            "keep-models=all keeps them"
        )
    return replace(
        first,
        users=delivery.users,
        round=delivery.round,
        kept=kept,
        size=size,
        clusters={user: clusters[user] for user in delivery.users if user in clusters},
    )
