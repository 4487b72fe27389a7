"""Files of SQLite for states: how they are opened, laid out, and kept small."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from corsage.core.errors import CheckpointError

LOCK_SECONDS = 120.0
"""Seconds for which a process waits for another one that writes."""
LOG_BYTES = 2**21
"""Bytes after which the log is emptied into the file, if that is more than a fourth of the file."""
PAGES = (4096, 8192, 16384, 32768, 65536)
DATABASE_MARK = 0x436F7273
"""What says in the file's head that it is one of these."""
LAYOUT = 1
STATE_TABLES = """
CREATE TABLE IF NOT EXISTS layouts (id INTEGER PRIMARY KEY, arrays TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS states (
    id INTEGER PRIMARY KEY, user TEXT NOT NULL, version INTEGER NOT NULL,
    layout INTEGER NOT NULL, checksum INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS whose ON states (user, version);
"""


def working(path: Path, page: int) -> sqlite3.Connection:
    """A connection that reads and writes; a new file becomes one of ours."""
    connection = connect(path)
    try:
        connection.execute(f"PRAGMA page_size = {page}")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            patiently(connection, "PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in STATE_TABLES.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {DATABASE_MARK}")
            connection.execute(f"PRAGMA user_version = {LAYOUT}")
            connection.execute("COMMIT")
        check(path, connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        limit_log(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def looking(path: Path) -> sqlite3.Connection:
    """A connection that only reads, also where nothing can be written, as in an archive."""
    log = path.with_name(f"{path.name}-wal")
    still = not log.exists() or not log.stat().st_size
    where = f"{path.resolve().as_uri()}?mode=ro"
    connection = connect(f"{where}&immutable=1" if still else where)
    try:
        check(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(target: Path | str) -> sqlite3.Connection:
    """A connection that begins transactions only when it is told to."""
    return sqlite3.connect(
        target,
        timeout=LOCK_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        uri=isinstance(target, str),
    )


def patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute what SQLite itself does not wait with, while another process is at it."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def check(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file of something else, or of another version."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if (mark, layout) != (DATABASE_MARK, LAYOUT):
        raise CheckpointError(
            f"{path}: not personal states as this version of Corsage keeps them: finish the run "
            "with the version that began it, or start it anew."
        )


def limit_log(connection: sqlite3.Connection) -> None:
    """The log is emptied into the file when it is long, if nobody asked for it before.

    That waits for the disk, twice: it is to be rare.
    """
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    most = max(LOG_BYTES, page * pages // 4)
    connection.execute(f"PRAGMA wal_autocheckpoint = {most // page}")
    connection.execute(f"PRAGMA journal_size_limit = {most}")


def page_size(row: int) -> int:
    """The smallest pages of which rows of so many bytes leave at most a tenth unused."""
    costs = {size: bytes_of_row(row + 24, size) / (row + 24) for size in PAGES}
    return next((s for s, c in costs.items() if c < 1.1), min(costs, key=lambda s: costs[s]))


def bytes_of_row(row: int, page: int) -> float:
    """Bytes of a row in a file of such pages, as SQLite lays it out: "Database File Format"."""
    inside, beyond = row, 0
    if row > page - 35:
        least = (page - 12) * 32 // 255 - 23
        inside = least + (row - least) % (page - 4)
        inside = inside if inside <= page - 35 else least
        beyond = (row - inside) // (page - 4) + bool((row - inside) % (page - 4))
    return beyond * page + page / ((page - 8) // (inside + 10))
