"""Log records as JSON lines, each with the id of the request it belongs to.

`configure` is called once by whoever owns the process, `set_level` when the level changes. Keys are
cut out of every finished line, wherever in it they came from: message, extra field or traceback.
Lines of one moment leave in one write; a warning, and the process's end, take along what waits.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

from inferd.clock import utc_now_us

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""Set by the HTTP middleware; every record logged on behalf of that request carries it."""

TEXT_CHARS_MAX: Final = 16_384
"""Of a message or a traceback; the rest is cut."""
LINE_WAIT_S: Final = 0.05
"""How long a line below a warning may wait for others; a process that is killed loses as much."""

_FIELDS: Final = "inferd_fields"
"""The extra fields of a record, if they are known without a search of all that it has."""
_BLANK: Final = vars(logging.makeLogRecord({}))
"""What every record has: to find it out anew for each line costs more than to write the line."""
_OWN_ATTRIBUTES: Final = frozenset(_BLANK) | {
    "asctime",
    "message",
    "taskName",
    _FIELDS,
}
# A key keeps the part that is shown as its name; whatever else is a bearer's token is nobody's.
KEY_PREFIX: Final = "sk-inferd-"
_KEY: Final = re.compile(r"(sk-inferd-[A-Za-z0-9_-]{8})[A-Za-z0-9_-]+")
_BEARER: Final = re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}")
_LIBRARIES: Final = ("aiohttp", "aiosqlite", "asyncio")


def configure(level: str, handler: logging.Handler | None = None) -> None:
    """Log from `level` (debug, info, warning, error) on, to standard error unless given a handler.

    Replaces what was configured before.
    """
    handler = LineHandler(sys.stderr) if handler is None else handler
    handler.setFormatter(JsonFormatter())
    # No line shows them, and each record would ask for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
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
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.__dict__ = {
        **_BLANK,
        "name": logger.name,
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "msg": msg,
        "created": utc_now_us() / 1e6,
        **fields,
        _FIELDS: fields,
    }
    logger.handle(record)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream: the lines of up to `LINE_WAIT_S` at once, if a loop runs."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + self.terminator)
        except Exception:  # noqa: BLE001 - as every handler: told on standard error, never raised
            self.handleError(record)
            return
        loop = _running_loop()
        if loop is None or record.levelno >= logging.WARNING:
            self.flush()
        elif self._timer is None or self._timer[0] is not loop:
            self._timer = loop, loop.call_later(LINE_WAIT_S, self.flush)

    def flush(self) -> None:
        """Write what waits; called at the process's end too."""
        with self.lock or nullcontext():
            if self._timer is not None:
                self._timer[1].cancel()
                self._timer = None
            if self._lines:
                text = "".join(self._lines)
                self._lines.clear()
                with suppress(OSError, ValueError):  # gone: there is nobody left to tell
                    self.stream.write(text)
                    self.stream.flush()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a thread, or before the loop and after it
        return None


class JsonFormatter(logging.Formatter):
    """One JSON object a record: ts, level, logger, msg, request_id, extra fields, exception."""

    _second = -1
    _second_text = ""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "ts": self._timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage()[:TEXT_CHARS_MAX],
        }
        if (request_id := REQUEST_ID.get()) is not None:
            fields["request_id"] = request_id
        known = record.__dict__.get(_FIELDS)
        if known is not None:
            fields = {**fields, **known, **fields}
        else:
            for name, value in record.__dict__.items():
                if name not in _OWN_ATTRIBUTES:
                    fields.setdefault(name, value)
        if record.exc_info:
            # The end of a traceback tells most.
            fields["exception"] = self.formatException(record.exc_info)[-TEXT_CHARS_MAX:]
        return redact(_dumps(fields))

    def _timestamp(self, at_s: float) -> str:
        """To the microsecond, in UTC; of one second only once the whole of it."""
        second, part_s = divmod(at_s, 1)
        if second != self._second:
            self._second = int(second)
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{int(part_s * 1e6):06d}+00:00"


def redact(text: str) -> str:
    """`text` without the secret part of any inferd key or bearer token in it."""
    if "bearer" in text.lower():  # looking for the word first costs a thirtieth of the expression
        text = _BEARER.sub(r"\1 [redacted]", text)
    return _KEY.sub(r"\1[redacted]", text) if KEY_PREFIX in text else text


def _dumps(fields: dict[str, Any]) -> str:
    try:
        line = orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # A lone surrogate of an odd file name, or a number beyond 64 bits: shown as text.
        line = orjson.dumps({name: _printable(value) for name, value in fields.items()})
    return line.decode()


def _printable(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()
