"""Keys of policies and controllers are written encrypted."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from osmosis_core import ConfigError

_ENV = "OSMOSIS_JOURNAL_KEY"
_REMEMBERED = 4096


class Keys:
    """Seals secrets with Fernet; equal secrets are sealed once.

    Raises:
        ConfigError: the key is not 32 bytes in URL-safe base64.
    """

    def __init__(self, key: str | bytes) -> None:
        try:
            self._fernet = Fernet(key)
        except ValueError:
            raise ConfigError(
                f"the journal's key is not 32 bytes in URL-safe base64; make one for {_ENV} with "
                "cryptography.fernet.Fernet.generate_key()"
            ) from None
        self._seal = functools.lru_cache(_REMEMBERED)(self._encrypt)

    def seal(self, secret: str | None) -> bytes | None:
        """What is written of a secret."""
        return None if secret is None else self._seal(secret)

    def unseal(self, sealed: bytes | None) -> str | None:
        """The secret again; raises InvalidToken when it was sealed with another key."""
        if sealed is None:
            return None
        return self._fernet.decrypt(sealed).decode(errors="surrogatepass")

    def _encrypt(self, secret: str) -> bytes:
        return self._fernet.encrypt(secret.encode(errors="surrogatepass"))

    def opens(self, sealed: bytes) -> bool:
        """Whether it was sealed with this key."""
        try:
            self._fernet.decrypt(sealed)
        except InvalidToken:
            return False
        return True


def load_key(beside: Path | None) -> bytes:
    """OSMOSIS_JOURNAL_KEY, else what `<journal>.key` holds, which is made when missing (0600).

    The caller holds the journal's lock.
    """
    if given := os.environ.get(_ENV):
        return given.encode()
    if beside is None:
        return Fernet.generate_key()
    path = beside.with_name(beside.name + ".key")
    if path.exists():
        return path.read_bytes().strip()
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key := Fernet.generate_key())
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    return key
