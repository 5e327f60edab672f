"""Arguments of a backend that a command line gives as text."""

from pathlib import Path

from osmosis_core import ConfigError

_YES, _NO = ("true", "1", "yes"), ("false", "0", "no")


def number(name: str, value: int | str | None) -> int | None:
    """A whole number of at least 1, or None.

    Raises:
        ConfigError: it is none.
    """
    if value is None or (str(value).isascii() and str(value).isdigit() and int(value) > 0):
        return None if value is None else int(value)
    raise ConfigError(f"{name} is {value!r}; give a whole number of at least 1")


def flag(name: str, value: bool | str | None, default: bool) -> bool:
    """True or false; None is the default.

    Raises:
        ConfigError: it is something else.
    """
    if value is None or isinstance(value, bool):
        return default if value is None else value
    if value.lower() not in _YES + _NO:
        raise ConfigError(f"{name} is {value!r}; give true or false")
    return value.lower() in _YES


def path(value: Path | str | None) -> Path | None:
    """An absolute path, or None."""
    return None if value is None else Path(value).expanduser().resolve()
