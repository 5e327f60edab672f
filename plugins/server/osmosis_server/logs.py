"""Logs of a server: text or JSON lines on stderr, each with the rollout that it is about.

Control characters are escaped, so no id, message or error text can begin a line of its own, and
keys are blotted out.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from osmosis_core import get_rollout_context

type LogFormat = Literal["text", "json"]

_HIDDEN = "[redacted]"
_MIN_SECRET = 8
_SECRETS = re.compile(
    r"""(?ix)
    (?P<name> \b bearer \s+
      | ["']? \b (?: proxy- )? (?: authorization | x-osmosis-rollout-lease
          | (?: \w+ [_-] )? (?: api [_-]? key | lease [_-]? token ) ) ["']? \s* [:=] \s*
          ["']? (?: bearer \s+ )? )
    [^\s"',;&}\]]+
    | \b sk- [\w-]{16,}
    """
)
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09
} | {0x0A: "\\n", 0x0D: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {
    "asctime",
    "color_message",
    "message",
    "rollout_id",
}


def configure_logs(
    style: LogFormat = "text",
    level: int | str = logging.INFO,
    secrets: Iterable[str | None] = (),
    stream: TextIO | None = None,
) -> logging.Handler:
    """Send all logs of this process to `stream` (stderr), instead of where they went before.

    `secrets`, such as the server's own key, are blotted out wherever they occur, as are the key of
    the rollout that a line is about, bearer tokens, and what is called a key or a lease token.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_FORMATTERS[style](tuple(secrets)))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    return handler


class _Formatter(logging.Formatter):
    def __init__(self, secrets: Iterable[str | None]) -> None:
        super().__init__()
        self._secrets = [secret for secret in secrets if secret]

    def _clean(self, text: str) -> str:
        context = get_rollout_context()
        key = context.api_key if context else None
        for secret in (*self._secrets, key):
            if secret and len(secret) >= _MIN_SECRET:
                text = text.replace(secret, _HIDDEN)
        return _SECRETS.sub(lambda found: (found["name"] or "") + _HIDDEN, text)

    def _rollout_id(self, record: logging.LogRecord) -> str | None:
        """What the caller says, else the rollout in which the line was written."""
        context = get_rollout_context()
        return getattr(record, "rollout_id", None) or (context.rollout_id if context else None)

    def _message(self, record: logging.LogRecord) -> str:
        return self._clean(record.getMessage())

    def _traceback(self, record: logging.LogRecord) -> str:
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        return self._clean("\n".join(filter(None, (exception, record.stack_info))))


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """`<time> <LEVEL> <logger> [<rollout id>] <message>`; tracebacks below it are indented."""
        rollout_id = self._rollout_id(record)
        about = f"[{rollout_id}] " if rollout_id else ""
        head = f"{_time(record)} {record.levelname} {record.name} "
        lines = (head + about + self._message(record)).translate(_CONTROLS)
        for line in self._traceback(record).split("\n"):
            lines += f"\n    {line.translate(_CONTROLS)}" if line else ""
        return lines


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One object: `time`, `level`, `logger`, `message`, `rollout_id`, `traceback`, and what
        the caller gave as `extra`."""
        extra = {name: value for name, value in vars(record).items() if name not in _KNOWN}
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "rollout_id": self._rollout_id(record),
            "message": self._message(record),
            "traceback": self._traceback(record) or None,
            **{name: self._clean(str(value)) for name, value in extra.items()},
        }
        return json.dumps({name: value for name, value in line.items() if value is not None})


_FORMATTERS: dict[LogFormat, type[_Formatter]] = {"text": _Text, "json": _Json}


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
