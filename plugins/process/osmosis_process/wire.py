"""Messages between a host and its worker: pickled tuples, each behind its length."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def send(writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
    """Queue a message; to a side that is gone it is lost."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(data)))
    writer.write(data)


async def receive(reader: asyncio.StreamReader) -> tuple[Any, ...] | None:
    """The next message, or None when the other side is gone."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_blocking(sock: socket.socket) -> tuple[Any, ...]:
    """The next message, and not a byte of the one after it.

    Raises:
        EOFError: the other side is gone.
    """
    (size,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return pickle.loads(_exactly(sock, size))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
