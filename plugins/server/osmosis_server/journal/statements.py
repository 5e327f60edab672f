"""What the journal says in SQL; each function applies all operations of its kind in a batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from osmosis_core import RolloutErrorCategory, RolloutStatus
from osmosis_server.journal.rows import SUBMISSION, Purged, Stored
from osmosis_server.journal.worker import Operation
from osmosis_server.submissions import Duplicate, RolloutView

_VACUUM_PAGES = 2000
_PURGE_ROWS = 500
_OVERSIZE_ROWS = 32

_ADMIT = """
INSERT INTO rollouts
  (seq, id, protocol, fingerprint, lease, request, llm_key, reply_key, has_begun)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""
_FINISH = """
UPDATE rollouts SET status = ?, reward = ?, err_message = ?, err_category = ?, body = ?,
  ended_at = ?, request = '', llm_key = NULL WHERE seq = ?
"""
_DELIVER = """
INSERT INTO deliveries (seq, step, name, url, made_at, body) VALUES (?, ?, ?, ?, ?, ?)
"""
_PURGE = """
DELETE FROM rollouts WHERE seq IN (
  SELECT seq FROM rollouts WHERE ended_at < ?
  AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.seq = rollouts.seq)
  AND seq NOT IN (SELECT value FROM json_each(?))
  ORDER BY ended_at LIMIT ?)
"""
_STORED = """
SELECT id, status, reward, err_message, err_category, body, lease FROM rollouts
WHERE id = ? AND ended_at IS NOT NULL
"""
_UNFINISHED = f"""
SELECT has_begun, is_told, lease, length(request), {SUBMISSION} FROM rollouts
WHERE ended_at IS NULL AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
_OUTSTANDING = """
SELECT d.seq, step, id, name, url, made_at, reply_key FROM deliveries d
JOIN rollouts USING (seq) WHERE (d.seq, step) > (?, ?) AND d.seq <= ?
ORDER BY d.seq, step LIMIT ?
"""


def admit(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Insert new rollouts; one whose id is known fails with Duplicate."""
    rows = [operation.argument for operation in operations]
    if connection.executemany(_ADMIT, rows).rowcount < len(rows):
        for operation in operations:
            _find_duplicate(connection, operation)


def _find_duplicate(connection: sqlite3.Connection, operation: Operation) -> None:
    seq, rollout_id, _, fingerprint, lease, *_ = operation.argument
    known, *first = connection.execute(
        "SELECT seq, fingerprint, lease FROM rollouts WHERE id = ?", (rollout_id,)
    ).fetchone()
    if known != seq:
        is_same = first == [fingerprint, lease]
        operation.error = Duplicate("rollout_id is already registered", is_same=is_same)


def begin(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Note that rollouts which waited begin."""
    begun = [(operation.argument,) for operation in operations]
    connection.executemany("UPDATE rollouts SET has_begun = 1 WHERE seq = ?", begun)


def tell(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Note that workflows ended and what their controllers are told."""
    told = [(operation.argument[0],) for operation in operations]
    connection.executemany("UPDATE rollouts SET is_told = 1 WHERE seq = ?", told)
    _deliver(connection, operations)


def finish(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Note how rollouts ended and what their controllers are told."""
    connection.executemany(_FINISH, [operation.argument[0] for operation in operations])
    _deliver(connection, operations)


def _deliver(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    if rows := [row for operation in operations for row in operation.argument[1]]:
        connection.executemany(_DELIVER, rows)


def settle(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Forget deliveries that were taken, or given up."""
    rows = [operation.argument for operation in operations]
    connection.executemany("DELETE FROM deliveries WHERE seq = ? AND step = ?", rows)


def purge(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Forget some rollouts whose retention is over, and the oldest when there is too much."""
    for operation in operations:
        before, max_bytes, kept = operation.argument
        forgotten = connection.execute(_PURGE, (before, kept, _PURGE_ROWS)).rowcount
        if not forgotten and _used_bytes(connection) > max_bytes:
            forgotten = connection.execute(_PURGE, (float("inf"), kept, _OVERSIZE_ROWS)).rowcount
        free = _pragma(connection, "freelist_count")
        if free > max(_VACUUM_PAGES, _pragma(connection, "page_count") // 4):
            connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
        operation.result = Purged(forgotten, _used_bytes(connection))


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def last_numbers(connection: sqlite3.Connection) -> tuple[int, int]:
    """The highest number of a rollout and of a step of a delivery."""
    query = (
        "SELECT coalesce((SELECT max(seq) FROM rollouts), 0), "
        "coalesce((SELECT max(step) FROM deliveries), 0)"
    )
    return connection.execute(query).fetchone()


def stored(connection: sqlite3.Connection, rollout_id: str) -> Stored | None:
    """A rollout that has ended."""
    row = connection.execute(_STORED, (rollout_id,)).fetchone()
    if row is None:
        return None
    known_id, status, reward, message, category, body, lease = row
    category = None if category is None else RolloutErrorCategory(category)
    view = RolloutView(known_id, RolloutStatus(status), reward, message, category, body)
    return Stored(view, lease)


def submissions(connection: sqlite3.Connection, seqs: Iterable[int]) -> list[tuple[Any, ...]]:
    """Rows of SUBMISSION."""
    seqs = tuple(seqs)
    marks = ", ".join("?" * len(seqs))
    query = f"SELECT {SUBMISSION} FROM rollouts WHERE seq IN ({marks}) AND ended_at IS NULL"
    return connection.execute(query, seqs).fetchall()


def unfinished(
    connection: sqlite3.Connection, after: int, last: int, limit: int
) -> list[tuple[Any, ...]]:
    """Of each: has it begun, is it told, its lease, its request's size, its row of SUBMISSION."""
    return connection.execute(_UNFINISHED, (after, last, limit)).fetchall()


def delivery(connection: sqlite3.Connection, seq: int, step: int) -> tuple[str, str, bytes] | None:
    """Name, URL and body."""
    query = "SELECT name, url, body FROM deliveries WHERE seq = ? AND step = ?"
    return connection.execute(query, (seq, step)).fetchone()


def outstanding(
    connection: sqlite3.Connection, after: tuple[int, int], last: int, limit: int
) -> list[tuple[Any, ...]]:
    """Deliveries without their bodies, in order."""
    return connection.execute(_OUTSTANDING, (*after, last, limit)).fetchall()
