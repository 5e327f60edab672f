"""A thread with an SQLite connection: operations in, one transaction per batch, answers out."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

_BATCH = 512
_SLICE = 64
_RETRY_SEC = 0.5


class Order(IntEnum):
    """In which order the operations of a batch are applied."""

    ADMIT = 0
    BEGIN = 1
    TELL = 2
    FINISH = 3
    SETTLE = 4
    PURGE = 5
    READ = 6
    """Outside the transaction."""


class Operation:
    """One thing to do in the thread.

    Args:
        order: when in its batch.
        apply: does all operations of one order in a batch; raises what SQLite raises.
        argument: what it works on.
        done: called on the event loop with the result, or with what was raised.
    """

    __slots__ = ("apply", "argument", "done", "error", "order", "result")

    def __init__(
        self,
        order: Order,
        apply: Callable[[sqlite3.Connection, Sequence[Operation]], None],
        argument: Any,
        done: Callable[[Any, Exception | None], None],
    ) -> None:
        self.order = order
        self.apply = apply
        self.argument = argument
        self.done = done
        self.result: Any = None
        self.error: Exception | None = None


class Worker:
    """Applies operations in batches and reports each batch to the event loop at once.

    When the disk takes nothing more, admissions fail and all else is held and tried again, in
    order, until it is written. `close` writes what it can.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._finished: deque[Operation] = deque()
        self._held: list[Operation] = []
        self._tried_at = 0.0
        self._why: sqlite3.Error | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Take an operation from the event loop; `done` is called there."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._queue.put(operation)

    def close(self) -> int:
        """End the thread after what was submitted, and return how many writes had no room."""
        self._queue.put(None)
        self._thread.join()
        self._connection.close()
        return len(self._held)

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._take()
            self._apply(batch, is_last=not is_open)

    def _take(self) -> tuple[list[Operation], bool]:
        """The operations that wait, and whether more may come."""
        batch: list[Operation] = []
        try:
            wait_sec = _RETRY_SEC if self._held else None
            operation = self._queue.get(timeout=wait_sec)
            while operation is not None:
                batch.append(operation)
                if len(batch) == _BATCH:
                    return batch, True
                operation = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _apply(self, batch: list[Operation], *, is_last: bool) -> None:
        reads = [operation for operation in batch if operation.order is Order.READ]
        writes = [operation for operation in batch if operation.order is not Order.READ]
        if self._held and not is_last and time.monotonic() < self._tried_at + _RETRY_SEC:
            self._hold(writes)
        elif writes or self._held:
            writes, self._held = [*self._held, *writes], []
            self._write(writes)
        for operation in reads:
            self._alone(operation)
        self._report(reads)

    def _write(self, writes: list[Operation]) -> None:
        try:
            self._transaction(writes)
        except sqlite3.OperationalError as error:  # no room, or not writable now
            self._why, self._tried_at = error, time.monotonic()
            self._hold(writes)
        except Exception:  # one that SQLite cannot take spoils no other
            for operation in writes:
                self._write_one(operation)
        else:
            self._report(writes)

    def _write_one(self, operation: Operation) -> None:
        try:
            self._transaction([operation])
        except sqlite3.OperationalError as error:
            self._why, self._tried_at = error, time.monotonic()
            self._hold([operation])
            return
        except Exception as error:
            operation.error = error
        self._report([operation])

    def _transaction(self, writes: Sequence[Operation]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for order in Order:
                if same := [operation for operation in writes if operation.order is order]:
                    same[0].apply(self._connection, same)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _alone(self, operation: Operation) -> None:
        try:
            operation.apply(self._connection, [operation])
        except Exception as error:
            operation.error = error

    def _hold(self, writes: list[Operation]) -> None:
        """Refuse what is new and keep the rest; it is tried again before anything else."""
        refused = [w for w in writes if w.order is Order.ADMIT]
        for operation in refused:
            operation.error = self._why
        self._held += [w for w in writes if w.order is not Order.ADMIT]
        self._report(refused)

    def _report(self, operations: list[Operation]) -> None:
        if not operations or self._loop is None:
            return
        self._finished.extend(operations)
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    def _resolve(self) -> None:
        """On the event loop, a slice at a time so that it stays responsive, and in order."""
        try:
            for _ in range(min(_SLICE, len(self._finished))):
                operation = self._finished.popleft()
                operation.done(operation.result, operation.error)
        finally:
            if self._finished and self._loop is not None:
                self._loop.call_soon(self._resolve)
