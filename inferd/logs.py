"""Log records as JSON lines, each with the id of the request it belongs to.

`configure` is called once by whoever owns the process, `set_level` when the level changes. Keys are
cut out of every finished line, wherever in it they came from: message, extra field or traceback.
"""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import orjson

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""Set by the HTTP middleware; every record logged on behalf of that request carries it."""

TEXT_CHARS_MAX: Final = 16_384
"""Of a message or a traceback; the rest is cut."""

_OWN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "asctime",
    "message",
    "taskName",
}
# A key keeps the part that is shown as its name; whatever else is a bearer's token is nobody's.
_KEY: Final = re.compile(r"(sk-inferd-[A-Za-z0-9_-]{8})[A-Za-z0-9_-]+")
_BEARER: Final = re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}")
_LIBRARIES: Final = ("aiohttp", "aiosqlite", "asyncio", "uvicorn")


def configure(level: str, handler: logging.Handler | None = None) -> None:
    """Log from `level` (debug, info, warning, error) on, to standard error unless given a handler.

    Replaces what was configured before.
    """
    handler = logging.StreamHandler(sys.stderr) if handler is None else handler
    handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers[:] = [handler]
    set_level(level)
    logging.captureWarnings(capture=True)


def set_level(level: str) -> None:
    """Log from `level` on, to where it was configured."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(max(root.level, logging.WARNING))


def line(logger: logging.Logger, level: int, msg: str, fields: dict[str, object]) -> None:
    """Log `msg` with extra fields, for a logger that is enabled for `level`.

    As `logger.log`, which also looks for the line of code that logs: no line here shows it.
    """
    names = {"name": logger.name, "levelno": level, "levelname": logging.getLevelName(level)}
    logger.handle(logging.makeLogRecord({**names, "msg": msg, **fields}))


class JsonFormatter(logging.Formatter):
    """One JSON object a record: ts, level, logger, msg, request_id, extra fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage()[:TEXT_CHARS_MAX],
        }
        if (request_id := REQUEST_ID.get()) is not None:
            fields["request_id"] = request_id
        for name, value in vars(record).items():
            if name not in _OWN_ATTRIBUTES:
                fields.setdefault(name, value)
        if record.exc_info:
            # The end of a traceback tells most.
            fields["exception"] = self.formatException(record.exc_info)[-TEXT_CHARS_MAX:]
        return redact(_dumps(fields))


def redact(text: str) -> str:
    """`text` without the secret part of any inferd key or bearer token in it."""
    if "bearer" in text.lower():  # looking for the word first costs a thirtieth of the expression
        text = _BEARER.sub(r"\1 [redacted]", text)
    return _KEY.sub(r"\1[redacted]", text)


def _dumps(fields: dict[str, Any]) -> str:
    try:
        line = orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # A lone surrogate of an odd file name, or a number beyond 64 bits: shown as text.
        line = orjson.dumps({name: _printable(value) for name, value in fields.items()})
    return line.decode()


def _printable(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()
