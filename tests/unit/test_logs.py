"""Every record is one JSON line that carries its request's id and no secret."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import secrets
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd import logs

SECRET = "sk-inferd-" + secrets.token_urlsafe(32)


Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Logs at level debug; calling the fixture's value gives all records written."""
    written = io.StringIO()
    with _logging_restored():
        with contextlib.redirect_stderr(written):
            logs.configure("debug")
        yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]


@contextlib.contextmanager
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        root.handlers[:] = handlers
        root.setLevel(level)


def test_a_record_is_one_json_line(lines: Lines) -> None:
    logging.getLogger("inferd.test").info("two\nlines: %s", "é", extra={"worker": "m-1"})
    (record,) = lines()
    assert record.pop("ts").endswith("+00:00")
    assert record == {
        "level": "info",
        "logger": "inferd.test",
        "msg": "two\nlines: é",
        "worker": "m-1",
    }


def test_the_request_of_the_context_is_named(lines: Lines) -> None:
    token = logs.REQUEST_ID.set("req_1")
    logging.getLogger("x").info("inside")
    logs.REQUEST_ID.reset(token)
    logging.getLogger("x").info("outside")
    inside, outside = lines()
    assert inside["request_id"] == "req_1"
    assert "request_id" not in outside


def test_an_exception_is_shown_with_its_traceback(lines: Lines) -> None:
    try:
        int("the cause")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (record,) = lines()
    assert record["exception"].startswith("Traceback")
    assert record["exception"].endswith("'the cause'")


def test_no_key_appears_wherever_it_was_put(lines: Lines) -> None:
    log = logging.getLogger("x")
    log.info("key %s", SECRET)
    log.info("a header", extra={"headers": {"authorization": f"Bearer {SECRET}"}})
    log.info("upstream", extra={"sent": ["Authorization: bearer abcdefgh.12345678"]})
    try:
        int(SECRET)
    except ValueError:
        log.exception("failed")
    written = json.dumps(lines())
    assert SECRET not in written
    assert SECRET[18:] not in written
    assert "abcdefgh" not in written
    assert f"key {SECRET[:18]}[redacted]" in written


def test_words_that_are_no_secret_stay() -> None:
    text = "send it as: Authorization: Bearer KEY (keys start with sk-inferd-)"
    assert logs.redact(text) == text


@given(st.text(max_size=20), st.text(max_size=20), st.binary(min_size=32, max_size=32))
def test_a_secret_never_survives(before: str, after: str, secret: bytes) -> None:
    key = "sk-inferd-" + secret.hex()
    assert secret.hex() not in logs.redact(f"{before}{key}{after}")


@pytest.mark.parametrize(
    "value", [2**70, "\udcff", {1: "a"}, {"a"}, Path("/x"), b"raw", float("nan")]
)
def test_any_extra_value_can_be_logged(lines: Lines, value: object) -> None:
    logging.getLogger("x").info("odd", extra={"value": value})
    (record,) = lines()
    assert record["msg"] == "odd"
    assert "value" in record


def test_a_long_message_is_cut(lines: Lines) -> None:
    logging.getLogger("x").info("a" * 1_000_000)
    (record,) = lines()
    assert len(record["msg"]) == logs.TEXT_CHARS_MAX


def test_extra_fields_never_replace_our_own(lines: Lines) -> None:
    logging.getLogger("x").info("mine", extra={"level": "fatal", "ts": 0})
    (record,) = lines()
    assert (record["level"], record["msg"]) == ("info", "mine")


async def test_lines_of_one_moment_are_written_together_and_a_warning_takes_them_along(
    lines: Lines,
) -> None:
    log = logging.getLogger("x")
    log.info("first")
    log.info("second")
    assert lines() == []
    await asyncio.sleep(logs.LINE_WAIT_S * 1.01)
    assert [record["msg"] for record in lines()] == ["first", "second"]
    log.info("third")
    log.warning("fourth")
    assert [record["msg"] for record in lines()] == ["first", "second", "third", "fourth"]
    log.info("last")
    logging.getLogger().handlers[0].flush()
    assert lines()[-1]["msg"] == "last"


def test_a_line_of_fields_looks_as_any_other(lines: Lines) -> None:
    log = logging.getLogger("x")
    fields: dict[str, object] = {"worker": "m-1", "level": "fatal", "n": 1.5}
    logs.line(log, logging.INFO, "said", fields)
    log.info("said", extra=fields)
    one, other = lines()
    one_at, other_at = (
        datetime.fromisoformat(one.pop("ts")),
        datetime.fromisoformat(other.pop("ts")),
    )
    assert one == other
    assert timedelta(0) <= other_at - one_at < timedelta(seconds=5)
    assert abs(datetime.now(UTC) - other_at) < timedelta(seconds=5)


def test_the_level_can_change(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("x")
    with _logging_restored():
        logs.configure("debug")
        log.debug("first")
        logs.configure("error")
        log.warning("not shown")
        log.error("second")
    written = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["msg"] for line in written] == ["first", "second"]


def test_libraries_speak_only_of_trouble(lines: Lines) -> None:
    logging.getLogger("aiosqlite").debug("every statement")
    logging.getLogger("aiohttp.access").info("started")
    logging.getLogger("aiohttp.access").error("broken")
    assert [record["msg"] for record in lines()] == ["broken"]


def test_warnings_are_records_too(lines: Lines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (record,) = lines()
    assert record["logger"] == "py.warnings"
    assert "old" in record["msg"]


def test_another_handler_keeps_its_place_when_the_level_changes(tmp_path: Path) -> None:
    path = tmp_path / "inferd.log"
    with _logging_restored():
        logs.configure("info", logging.FileHandler(path))
        logging.getLogger("x").debug("unseen")
        logs.set_level("debug")
        logging.getLogger("x").debug("seen")
        logging.getLogger("aiosqlite").debug("a library's")
        handler = logging.getLogger().handlers[0]
        handler.close()
    (record,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (record["level"], record["msg"]) == ("debug", "seen")
