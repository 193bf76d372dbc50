"""Refusals of a real engine, in our words: the recorded ones, and what nobody may see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given

from inferd.errors import (
    ContextLengthExceeded,
    InferdError,
    InvalidField,
    Preempted,
    RequestError,
    UnsupportedFeature,
    UpstreamError,
    WorkerFull,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnreachable,
)
from inferd.upstream.engine_error import from_body, from_event

RECORDED = Path(__file__).parents[2] / "data" / "engine_captures"

# As the engine's source writes them.
TOO_MANY_IN_ALL = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You "
    "requested a total of 5000 tokens: 4000 tokens from the input messages and 1000 tokens for the "
    "completion. Please reduce the number of tokens in the input messages or the completion to fit "
    "within the limit."
)
TOO_MANY_FOR_THE_CACHE = (
    "Input length (5031 tokens) exceeds the maximum allowed length (2047 tokens). Use a shorter "
    "input or enable --allow-auto-truncate."
)
NO_GRAMMAR = (
    "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the "
    "server is launched with --grammar-backend none"
)


def recorded(name: str) -> InferdError:
    """The error that a recorded answer (status line, headers, body) becomes."""
    head, _, body = (RECORDED / name).read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")
    return from_body(int(head.split()[1]), body.strip())


def refused(message: str, status: int = 400) -> InferdError:
    return from_body(
        status,
        orjson.dumps({"object": "error", "message": message, "type": "x", "code": status}),
    )


@pytest.mark.parametrize("name", ["err_prompt_too_long.http", "err_prompt_too_long_stream.http"])
def test_a_prompt_over_the_context_is_told_with_both_numbers(name: str) -> None:
    error = recorded(name)
    assert isinstance(error, ContextLengthExceeded)
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert error.message == (
        "This model's maximum context length is 4096 tokens. However, your messages resulted in "
        "5031 tokens. Please reduce the length of the messages."
    )


@pytest.mark.parametrize("name", ["err_too_long.http", "err_stream_too_long.http"])
def test_too_much_output_is_told_by_its_parameter(name: str) -> None:
    error = recorded(name)
    assert isinstance(error, InvalidField)
    assert (error.code, error.param) == ("integer_above_max_value", "max_completion_tokens")
    assert "<= 4096, but got 999999" in error.message


def test_a_schema_that_does_not_compile_is_told_with_the_compilers_reason() -> None:
    error = recorded("err_bad_schema.http")
    assert isinstance(error, InvalidField)
    assert (error.code, error.param) == ("invalid_json_schema", "response_format")
    assert 'Unsupported type "nonsense"' in error.message
    assert ".cc" not in error.message
    assert "/project" not in error.message


@pytest.mark.parametrize("name", ["err_bad_json.http", "err_missing_messages.http"])
def test_validation_texts_and_paths_of_the_engine_are_never_shown(name: str) -> None:
    error = recorded(name)
    assert isinstance(error, WorkerRejected)
    assert (error.status, error.type) == (400, "invalid_request_error")
    for leak in ("File", "/", "sglang", "loc", "body", ".py"):
        assert leak not in error.message


def test_a_refused_gateway_key_is_the_operators_trouble_and_another_worker_may_do() -> None:
    error = recorded("err_noauth.http")
    assert isinstance(error, WorkerUnreachable)
    assert error.status == 502
    assert error.retryable


def test_being_evicted_for_a_higher_priority_is_no_failure_of_the_worker() -> None:
    status, *_, body = (RECORDED / "queue_full_evicted_low.json").read_bytes().strip().split(b"\n")
    error = from_body(int(status), body)
    assert isinstance(error, Preempted)
    assert error.retryable


@pytest.mark.parametrize("name", ["queue_full_nonstream.json"])
def test_a_full_queue_is_a_429_after_another_worker_was_tried(name: str) -> None:
    status, *_, body = (RECORDED / name).read_bytes().strip().split(b"\n")
    error = from_body(int(status), body)
    assert isinstance(error, WorkerFull)
    assert (error.status, error.code) == (429, "overloaded")
    assert error.retryable
    assert error.retry_after_s == 1


def test_a_full_queue_is_the_same_inside_a_stream() -> None:
    lines = (RECORDED / "queue_full_stream.txt").read_bytes().splitlines()
    data = next(line for line in lines if line.startswith(b"data: {"))
    error = from_event(orjson.loads(data.removeprefix(b"data: "))["error"])
    assert isinstance(error, WorkerFull)


@pytest.mark.parametrize(
    ("message", "kind", "param", "words"),
    [
        (
            TOO_MANY_IN_ALL,
            ContextLengthExceeded,
            "messages",
            "5000 tokens (4000 in the messages, 1000 in the completion)",
        ),
        (
            TOO_MANY_FOR_THE_CACHE,
            ContextLengthExceeded,
            "messages",
            "resulted in 5031 tokens",
        ),
        (
            "Request prompt exceeds the KV memory budget: input_len=9000.",
            ContextLengthExceeded,
            "messages",
            "maximum context length would be exceeded",
        ),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000.",
            ContextLengthExceeded,
            "messages",
            "maximum context length is 8192 tokens",
        ),
        (
            "Failed to compile structural_tag grammar: bad",
            InvalidField,
            "tools",
            "bad",
        ),
        ("Failed to compile regex grammar: (?!", InvalidField, "regex", "(?!"),
        ("Failed to compile ebnf grammar: ", InvalidField, "ebnf", "cannot enforce"),
        (
            (
                "Failed to compile json grammar: JSON Schema at #/properties/a is not supported by "
                "xgrammar: keyword uniqueItems"
            ),
            InvalidField,
            "response_format",
            "#/properties/a",
        ),
        (
            "Grammar preprocessing timed out: req.grammar_key=('json', '{\"secret\": 1}')",
            InvalidField,
            "response_format",
            "too long to compile",
        ),
        (
            NO_GRAMMAR,
            UnsupportedFeature,
            "response_format",
            "without a grammar backend",
        ),
        (
            "Tool 3 function has invalid 'parameters' schema: {'a': 1} is not of type 'string'",
            InvalidField,
            "tools[3].function.parameters",
            "not a valid JSON schema",
        ),
        (
            "logit_bias must has keys in [0, 49151], got 99999.",
            InvalidField,
            "logit_bias",
            "'99999'",
        ),
        (
            "Conversation roles must alternate user/assistant/user/assistant/...",
            RequestError,
            "messages",
            "chat template",
        ),
        ("System message must be at the beginning.", RequestError, "messages", "chat template"),
    ],
)
def test_known_refusals_name_the_parameter(
    message: str, kind: type[InferdError], param: str, words: str
) -> None:
    error = refused(message)
    assert isinstance(error, kind)
    assert (error.status, error.param) == (400, param)
    assert words in error.message
    assert "secret" not in error.message
    assert not getattr(error, "retryable", False)


@pytest.mark.parametrize(
    "detail",
    [
        "boom at /opt/engine/venv/lib/python3.11/site-packages/x",
        'File "a.py", line 3',
        "Traceback (most recent call last)",
        "see converter.cc for more",
    ],
)
def test_a_compilers_reason_with_internals_in_it_is_left_out(detail: str) -> None:
    error = refused(f"Failed to compile json grammar: {detail}")
    assert error.param == "response_format"
    assert detail not in error.message


def test_a_long_reason_is_cut() -> None:
    assert len(refused("Failed to compile json grammar: " + "x" * 5_000).message) < 400


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, WorkerRejected),
        (413, WorkerRejected),
        (422, WorkerRejected),
        (401, WorkerUnreachable),
        (403, WorkerUnreachable),
        (404, WorkerUnreachable),
        (405, WorkerUnreachable),
        (408, WorkerTimeout),
        (429, WorkerFull),
        (500, WorkerUnreachable),
        (501, WorkerUnreachable),
        (503, WorkerUnreachable),
        (504, WorkerTimeout),
        (302, UpstreamError),
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>secret</html>",
        b'{"detail":"secret"}',
        b'{"error":"secret"}',
        b'{"error":{"message":"secret","code":null}}',
        b'{"object":"error","message":"secret","type":"x","param":null,"code":400}',
        b'["secret"]',
        b'{"message":{"secret":1}}',
    ],
)
def test_a_status_has_one_meaning_whatever_the_body(
    status: int, kind: type[InferdError], body: bytes
) -> None:
    error = from_body(status, body)
    assert type(error) is kind
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"message": "x", "code": 400}, WorkerRejected),
        ({"message": "x", "code": "400"}, WorkerRejected),
        ({"message": "x", "code": "context_length_exceeded"}, WorkerUnreachable),
        ({"message": "x", "code": "9" * 5_000}, WorkerUnreachable),
        ({"message": "x"}, WorkerUnreachable),
        ("boom", WorkerUnreachable),
        (None, WorkerUnreachable),
    ],
)
def test_an_event_says_its_status_in_its_code(value: Any, kind: type[InferdError]) -> None:
    assert type(from_event(value)) is kind


@given(st.integers(300, 599), st.binary(max_size=60) | st.text(max_size=60).map(orjson.dumps))
def test_any_answer_becomes_an_error_of_ours(status: int, body: bytes) -> None:
    assert isinstance(from_body(status, body), InferdError)
