"""A batch's file is checked whole: every row of the table of errors, every odd form of a file."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.batch.lines import (
    ERRORS_MAX,
    LINES_MAX,
    Checked,
    Rules,
    check_file,
)

CHAT = "/v1/chat/completions"
MODELS = {"chat": "chat", "other": "chat", "vectors": "embedding"}


def rules(endpoint: str = CHAT, **more: Any) -> Rules:
    return Rules(endpoint, MODELS, **{"line_bytes_max": 65_536, **more})


def line(number: int, *, url: str = CHAT, **changes: Any) -> dict[str, Any]:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}
    return {"custom_id": f"id-{number}", "method": "POST", "url": url, "body": body} | changes


def encoded(*lines: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(one) + b"\n" for one in lines)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input.jsonl"


def check(path: Path, data: bytes, **more: Any) -> Checked:
    path.write_bytes(data)
    return check_file(path, rules(**more))


def told(checked: Checked) -> list[tuple[str, int | None, str | None]]:
    return [(error.code, error.line, error.param) for error in checked.errors]


def without(name: str) -> dict[str, Any]:
    found = line(2)
    del found[name]
    return found


def with_body(**changes: Any) -> dict[str, Any]:
    return line(2, body=line(2)["body"] | changes)


BAD_LINES = {
    "not JSON": (b"{oh no\n", "invalid_json_line", None),
    "no object": (b"[1]\n", "invalid_json_line", None),
    "invalid UTF-8": (b'{"custom_id": "\xff"}\n', "invalid_json_line", None),
    "no custom_id": (without("custom_id"), "missing_required_parameter", "custom_id"),
    "no method": (without("method"), "missing_required_parameter", "method"),
    "no url": (without("url"), "missing_required_parameter", "url"),
    "no body": (without("body"), "missing_required_parameter", "body"),
    "an empty id": (line(2, custom_id=""), "invalid_value", "custom_id"),
    "a long id": (line(2, custom_id="x" * 513), "invalid_value", "custom_id"),
    "a number as id": (line(2, custom_id=7), "invalid_value", "custom_id"),
    "an id twice": (line(1), "duplicate_custom_id", "custom_id"),
    "another url": (line(2, url="/v1/embeddings"), "invalid_url", "url"),
    "GET": (line(2, method="GET"), "invalid_method", "method"),
    "a body that is none": (line(2, body=[]), "invalid_value", "body"),
    "a stream": (with_body(stream=True), "streaming_unsupported", "body.stream"),
    "an unknown model": (with_body(model="nobody"), "model_not_found", "body.model"),
    "a second model": (with_body(model="other"), "mismatched_model", "body.model"),
    "a model that embeds": (with_body(model="vectors"), "model_not_found", "body.model"),
    "no model": (with_body(model=None), "invalid_request", "body.model"),
    "no messages": (with_body(messages=None), "invalid_request", "body.messages"),
    "a line too long": (with_body(user="x" * 70_000), "request_too_large", None),
}


@pytest.mark.parametrize(("bad", "code", "param"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_told_with_its_number(
    path: Path, bad: bytes | dict[str, Any], code: str, param: str | None
) -> None:
    raw = bad if isinstance(bad, bytes) else encoded(bad)
    checked = check(path, encoded(line(1)) + b"\n" + raw + encoded(line(3)))
    assert told(checked) == [(code, 3, param)]
    assert checked.errors[0].message


def test_every_bad_line_is_told_in_order(path: Path) -> None:
    checked = check(path, b"x\n" + encoded(line(1), line(1)) + b"[]\n")
    assert told(checked) == [
        ("invalid_json_line", 1, None),
        ("duplicate_custom_id", 3, "custom_id"),
        ("invalid_json_line", 4, None),
    ]


def test_the_list_of_errors_ends_somewhere(path: Path) -> None:
    checked = check(path, b"x\n" * 1_000)
    assert len(checked.errors) == ERRORS_MAX
    assert checked.errors_total == 1_000


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n\t\n"])
def test_a_file_without_requests(path: Path, data: bytes) -> None:
    assert told(check(path, data)) == [("empty_file", None, None)]


def test_too_many_lines(path: Path) -> None:
    assert check(path, encoded(*map(line, range(20))), lines_max=20).errors == []
    checked = check(path, encoded(*map(line, range(21))), lines_max=20)
    assert told(checked) == [("too_many_tasks", None, None)]
    assert LINES_MAX == 50_000


def test_archives_are_told_as_such(path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("lines.jsonl", encoded(line(1)))
    for data in (archive.getvalue(), gzip.compress(encoded(line(1)))):
        checked = check(path, data)
        assert told(checked) == [("invalid_json_line", 1, None)]
        assert "the lines of JSON themselves" in checked.errors[0].message


def test_embeddings_are_counted_by_input(path: Path) -> None:
    def embedding(number: int, value: Any) -> dict[str, Any]:
        body = {"model": "vectors", "input": value}
        return line(number, url="/v1/embeddings", body=body)

    data = encoded(embedding(1, ["a"] * 30_000), embedding(2, "a"), embedding(3, [1, 2]))
    more = {"endpoint": "/v1/embeddings", "line_bytes_max": 1_000_000}
    assert check(path, data, **more).errors == []
    checked = check(path, data + encoded(embedding(4, ["a"] * 20_000)), **more)
    assert told(checked) == [("too_many_tasks", 4, "body.input")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_odd_forms_of_good_lines(path: Path, begin: bytes, end: bytes, last: bytes) -> None:
    raws = [orjson.dumps(line(number)) for number in range(3)]
    data = begin + (end + end).join(raws) + last
    checked = check(path, data)
    assert checked.errors == []
    assert checked.total == 3
    entries = [tuple(checked.entries[at : at + 3]) for at in range(0, 9, 3)]
    assert [number for number, _, _ in entries] == [1, 3, 5]
    assert [data[offset : offset + length] for _, offset, length in entries] == raws


def test_a_very_long_line_is_never_held(path: Path) -> None:
    with path.open("wb") as file:
        file.write(encoded(line(1)))
        file.write(b'{"custom_id": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + encoded(line(3)))
    checked = check_file(path, rules())
    assert told(checked) == [("request_too_large", 2, None)]
    assert checked.total == 3


def test_what_is_estimated(path: Path) -> None:
    limited = line(1, body=line(1)["body"] | {"max_tokens": 50})
    checked = check(path, encoded(limited, line(2)))
    assert (checked.output_tokens, checked.unlimited) == (50, 1)
    assert checked.prompt_tokens == sum(len(orjson.dumps(one)) // 4 for one in (limited, line(2)))


@given(data=st.binary(max_size=2_000))
def test_any_bytes_are_checked_or_told(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "input.jsonl"
    checked = check(path, data)
    assert checked.errors
    assert all(error.message and error.code for error in checked.errors)


@given(
    cut=st.integers(0, 400),
    joint=st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    count=st.integers(1, 4),
)
def test_a_cut_file_is_good_only_at_the_end_of_a_line(
    tmp_path_factory: Any, cut: int, joint: bytes, count: int
) -> None:
    raws = [orjson.dumps(line(number)) for number in range(count)]
    data = joint.join(raws)[:cut]
    checked = check(tmp_path_factory.mktemp("cut") / "input.jsonl", data)
    whole = [raw for raw in data.replace(b"\r", b"").split(b"\n") if raw]
    assert (checked.errors == []) == (bool(whole) and all(raw in raws for raw in whole))
