"""Opens a journal: its lock, its version, its tables."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from osmosis_core import ConfigError
from osmosis_server.journal.keys import Keys

VERSION = 1
_APPLICATION = 0x6F736D6A
_BUSY_SEC = 5.0
_CACHE_KIB = 16 * 1024
_LOG_BYTES = 64 * 1024 * 1024

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE rollouts (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  protocol TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  lease BLOB,
  llm_key BLOB,
  reply_key BLOB,
  has_begun INTEGER NOT NULL,
  is_told INTEGER NOT NULL DEFAULT 0,
  ended_at REAL,
  status TEXT,
  reward REAL,
  err_message TEXT,
  err_category TEXT,
  request TEXT NOT NULL,
  body BLOB
);
CREATE INDEX rollouts_ended_at ON rollouts (ended_at);
CREATE TABLE deliveries (
  seq INTEGER NOT NULL,
  step INTEGER NOT NULL,
  name TEXT NOT NULL,
  url TEXT NOT NULL,
  made_at REAL NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (seq, step)
) WITHOUT ROWID;
"""


class Lock:
    """One live server holds a journal; the lock goes with its process, however it ends.

    Raises:
        ConfigError: another process holds it; the message names its pid.
    """

    def __init__(self, journal: Path) -> None:
        path = journal.with_name(journal.name + ".lock")
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise ConfigError(
                f"journal {str(journal)!r} is held by the live server with pid {holder}; stop it, "
                "or give this server a journal of its own"
            ) from None
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another server have the journal."""
        os.close(self._handle)


def connect(path: Path | None) -> sqlite3.Connection:
    """A connection as the journal's threads use it; None is a database in memory."""
    where = path or ":memory:"
    return sqlite3.connect(where, _BUSY_SEC, isolation_level=None, check_same_thread=False)


def make_private(path: Path) -> None:
    """Create the journal's folder and file where they are missing, for this user only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def prepare(
    connection: sqlite3.Connection, where: str, keys: Keys, *, survive_power_loss: bool
) -> None:
    """Make the tables of a new journal, or check those of an old one.

    Raises:
        ConfigError: it is no journal, of another version, or written with another key.
    """
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            _create(connection, keys)
        _check(connection, where, keys)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if survive_power_loss else 'NORMAL'}")
    except sqlite3.DatabaseError as error:
        raise ConfigError(
            f"{where} cannot be read as a journal: {error}; move it away, or name another file"
        ) from error


def _create(connection: sqlite3.Connection, keys: Keys) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    check = (keys.seal("osmosis") or b"").hex()
    connection.executescript(
        f"BEGIN; {_TABLES} INSERT INTO meta VALUES ('key', x'{check}');"
        f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
    )


def _check(connection: sqlite3.Connection, where: str, keys: Keys) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise ConfigError(f"{where} is not a journal of a rollout server; name another file")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise ConfigError(
            f"{where} is a journal of version {version}, this server writes version {VERSION}; let "
            "the server that wrote it finish its rollouts, or name another file"
        )
    (check,) = connection.execute("SELECT value FROM meta WHERE name = 'key'").fetchone()
    if not keys.opens(check):
        raise ConfigError(
            f"{where} was written with another key; give that one in OSMOSIS_JOURNAL_KEY, or name "
            "another file"
        )
