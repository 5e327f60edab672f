"""The journal as the service sees it: awaitable reads, and writes that say when they are safe."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from osmosis_core import ConfigError
from osmosis_server.journal import opening, statements
from osmosis_server.journal.keys import Keys, load_key
from osmosis_server.journal.rows import (
    Admission,
    Ending,
    Outstanding,
    Purged,
    Stored,
    Unfinished,
    dump_request,
    lease_digest,
    read_submission,
)
from osmosis_server.journal.worker import Operation, Order, Worker
from osmosis_server.submissions import Delivery, Full, Submission

type Done = Callable[[Exception | None], None]
"""Called on the event loop once a write is safe, or with what was wrong with it."""

type Numbered = tuple[int, Delivery]
"""A delivery and its step."""

_RETRY_AFTER_SEC = 5


class JournalFull(Full):
    """The disk takes nothing more; what runs goes on, and is written when there is room."""


class Journal:
    """Rollouts, their results and the deliveries they owe, in SQLite (WAL mode).

    All methods belong to one event loop; SQLite runs in two threads, one that writes and commits
    in groups and one that reads. Writes of one rollout take effect in the order of the calls.
    Keys are written encrypted (Fernet), lease tokens as SHA-256 only.
    """

    def __init__(
        self, writer: Worker, reader: Worker, keys: Keys, lock: opening.Lock | None, last: Any
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._keys = keys
        self._lock = lock
        self._last_seq = last[0]
        self._seqs = itertools.count(last[0] + 1)
        self._steps = itertools.count(last[1] + 1)

    @classmethod
    def open(
        cls,
        path: Path | str | Literal[":memory:"],
        key: str | bytes | None = None,
        *,
        survive_power_loss: bool = False,
    ) -> Self:
        """Open a journal or make a new one.

        Args:
            path: a file; `:memory:` forgets everything with the process.
            key: Fernet key for secrets; by default OSMOSIS_JOURNAL_KEY, else a file `<path>.key`.
            survive_power_loss: wait for the disk at each commit; a killed process loses nothing
                either way.

        Raises:
            ConfigError: a live server holds it (the message names its pid), it is of another
                version or written with another key, or it cannot be read or made.
        """
        file = None if path == ":memory:" else Path(path).resolve()
        lock = None
        try:
            if file is not None:
                opening.make_private(file)
                lock = opening.Lock(file)
            return cls._opened(file, key, lock, survive_power_loss)
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                where = error.filename or file
                raise ConfigError(f"journal: {str(where)!r}: {error.strerror}") from error
            raise

    @classmethod
    def _opened(
        cls, file: Path | None, key: str | bytes | None, lock: opening.Lock | None, sync: bool
    ) -> Self:
        keys = Keys(load_key(file) if key is None else key)
        connection = opening.connect(file)
        try:
            where = f"journal {str(file)!r}"
            opening.prepare(connection, where, keys, survive_power_loss=sync)
            last = statements.last_numbers(connection)
        except BaseException:
            connection.close()
            raise
        writer = Worker(connection, "osmosis-journal")
        if file is None:
            return cls(writer, writer, keys, lock, last)
        reader = Worker(opening.connect(file), "osmosis-journal-reader")
        return cls(writer, reader, keys, lock, last)

    def admit(self, submission: Submission, done: Done, *, begins: bool = False) -> Admission:
        """Write a new rollout; `begins` when it begins at once, so that `begin` need not say so.

        `done` gets Duplicate when the id is known, JournalFull when the disk is full.
        """
        seq, request = next(self._seqs), dump_request(submission)
        row = (
            seq,
            submission.request.id,
            submission.protocol,
            submission.fingerprint,
            lease_digest(submission.lease_token),
            request,
            self._keys.seal(submission.llm_api_key),
            self._keys.seal(submission.reply_key),
            begins,
        )
        operation = Operation(Order.ADMIT, statements.admit, row, partial(_admitted, done))
        self._writer.submit(operation)
        return Admission(seq, len(request))

    async def begin(self, seq: int) -> None:
        """Write that a rollout which waited begins; after a restart it is not taken for new."""
        await self._ask(self._writer, Order.BEGIN, statements.begin, seq)

    def number(self, deliveries: Iterable[Delivery]) -> list[Numbered]:
        """Give deliveries their steps: those of one rollout are delivered in this order."""
        return [(next(self._steps), delivery) for delivery in deliveries]

    def tell(self, seq: int, deliveries: Sequence[Numbered], done: Done) -> None:
        """Write that a workflow ended, with what its controller is told."""
        self._write(Order.TELL, statements.tell, (seq, _rows(seq, deliveries)), done)

    def finish(self, seq: int, ending: Ending, deliveries: Sequence[Numbered], done: Done) -> None:
        """Write how a rollout ended, with what its controller is told."""
        view = ending.view
        result = (
            view.status,
            view.reward,
            view.err_message,
            view.err_category,
            view.body,
            ending.ended_at,
            seq,
        )
        self._write(Order.FINISH, statements.finish, (result, _rows(seq, deliveries)), done)

    def settle(self, seq: int, step: int, done: Done | None = None) -> None:
        """Forget a delivery that was taken, or given up."""
        self._write(Order.SETTLE, statements.settle, (seq, step), done or _ignore)

    async def purge(self, before: float, max_bytes: int, keep: Iterable[int] = ()) -> Purged:
        """Forget some rollouts that ended before then (Unix time), none that owes a delivery.

        When there are none, and more than `max_bytes` are used, some of the oldest. Call it again
        until it forgets none. `keep`: numbers of rollouts that stay.
        """
        argument = (before, max_bytes, json.dumps(list(keep)))
        return await self._ask(self._writer, Order.PURGE, statements.purge, argument)

    async def stored(self, rollout_id: str) -> Stored | None:
        """A rollout that has ended, or None."""
        return await self._read(partial(statements.stored, rollout_id=rollout_id))

    async def submissions(self, seqs: Sequence[int]) -> dict[int, Submission]:
        """What was submitted, of those that have not ended."""

        def read(connection: sqlite3.Connection) -> dict[int, Submission]:
            rows = statements.submissions(connection, seqs)
            return {row[0]: read_submission(row, self._keys) for row in rows}

        return await self._read(read)

    async def unfinished(self, after: int = 0, limit: int = 200) -> list[Unfinished]:
        """Rollouts that had not ended when the journal was opened, in order of admission.

        Those with numbers above `after`.
        """

        last = self._last_seq

        def read(connection: sqlite3.Connection) -> list[Unfinished]:
            return [
                Unfinished(
                    row[0],
                    bool(has_begun),
                    bool(is_told),
                    lease,
                    size,
                    read_submission(tuple(row), self._keys),
                )
                for has_begun, is_told, lease, size, *row in statements.unfinished(
                    connection, after, last, limit
                )
            ]

        return await self._read(read)

    async def delivery(self, seq: int, step: int) -> Delivery | None:
        """A delivery with its body, or None when it is settled."""
        row = await self._read(partial(statements.delivery, seq=seq, step=step))
        return None if row is None else Delivery(*row)

    async def outstanding(
        self, after: tuple[int, int] = (0, 0), limit: int = 500
    ) -> list[Outstanding]:
        """Deliveries that were owed when the journal was opened, in order.

        Those after a rollout's number and a step.
        """
        last = self._last_seq

        def read(connection: sqlite3.Connection) -> list[Outstanding]:
            rows = statements.outstanding(connection, after, last, limit)
            unseal = self._keys.unseal
            return [Outstanding(*row, reply_key=unseal(sealed)) for *row, sealed in rows]

        return await self._read(read)

    async def close(self) -> int:
        """Write what is under way and let the file go; returns how many writes had no room."""
        lost = await asyncio.to_thread(self._close)
        await asyncio.sleep(0)
        return lost

    def _close(self) -> int:
        lost = self._writer.close()
        if self._reader is not self._writer:
            self._reader.close()
        if self._lock is not None:
            self._lock.release()
        return lost

    def _write(self, order: Order, apply: Any, argument: Any, done: Done) -> None:
        self._writer.submit(Operation(order, apply, argument, lambda _, error: done(error)))

    async def _read(self, read: Callable[[sqlite3.Connection], Any]) -> Any:
        return await self._ask(self._reader, Order.READ, _reading, read)

    async def _ask(self, worker: Worker, order: Order, apply: Any, argument: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        worker.submit(Operation(order, apply, argument, partial(_answer, future)))
        return await future


def _rows(seq: int, deliveries: Sequence[Numbered]) -> list[tuple[Any, ...]]:
    now = time.time()
    return [(seq, step, d.name, d.url, now, d.body) for step, d in deliveries]


def _reading(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    for operation in operations:
        operation.result = operation.argument(connection)


def _admitted(done: Done, _: Any, error: Exception | None) -> None:
    if isinstance(error, sqlite3.Error):
        error = JournalFull(
            f"the journal cannot be written ({error}); free some room on its disk: running "
            "rollouts go on, new ones are accepted then",
            _RETRY_AFTER_SEC,
        )
    done(error)


def _answer(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _ignore(error: Exception | None) -> None:
    pass
