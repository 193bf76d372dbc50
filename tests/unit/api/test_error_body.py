"""The renderer: status, headers and four keys for every error there is."""

from __future__ import annotations

import inspect
from typing import Any

import orjson
import pytest
from starlette.types import Message

import inferd.errors
from inferd.api.error_body import Rendered, error_content, render, respond
from inferd.errors import (
    BodyTimeout,
    BodyTooLarge,
    BudgetSpent,
    ConfigError,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    FileQuotaExceeded,
    FileStoreError,
    InferdError,
    InternalError,
    InvalidAnswer,
    InvalidBody,
    InvalidField,
    InvalidKey,
    MethodNotAllowed,
    MissingKey,
    ModelNotAllowed,
    NotFound,
    NoWorker,
    Preempted,
    ProvisionError,
    QueueFull,
    RangeNotSatisfiable,
    RateLimited,
    RequestError,
    Shed,
    ShuttingDown,
    StartError,
    StorageError,
    UnknownModel,
    UnknownParameter,
    UnknownUrl,
    UnsupportedFeature,
    UpstreamError,
    WaitTooLong,
    WorkerFailedMidStream,
    WorkerFull,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnreachable,
)

BAD = "invalid_request_error"
OURS = "server_error"
# error, status, type, code, who failed, x-should-retry: false
RENDERED: list[tuple[InferdError, int, str, str | None, str, bool]] = [
    (RequestError("m"), 400, BAD, None, "gateway", False),
    (InvalidBody("m"), 400, BAD, None, "gateway", False),
    (InvalidField("m", param="p"), 400, BAD, "invalid_value", "gateway", False),
    (UnknownParameter("m"), 400, BAD, "unknown_parameter", "gateway", False),
    (UnsupportedFeature("m"), 400, BAD, "unsupported_parameter", "gateway", False),
    (ContextLengthExceeded("m"), 400, BAD, "context_length_exceeded", "gateway", False),
    (UnknownModel("m"), 404, BAD, "model_not_found", "gateway", False),
    (NotFound("m"), 404, BAD, None, "gateway", False),
    (UnknownUrl("m"), 404, BAD, "unknown_url", "gateway", False),
    (
        MethodNotAllowed("m", allow=("GET", "HEAD")),
        405,
        BAD,
        "method_not_supported",
        "gateway",
        False,
    ),
    (BodyTooLarge("m"), 413, BAD, "request_too_large", "gateway", False),
    (BodyTimeout("m"), 408, BAD, "request_timeout", "gateway", False),
    (Conflict("m"), 409, BAD, None, "gateway", True),
    (FileQuotaExceeded("m"), 403, BAD, "file_quota_exceeded", "gateway", False),
    (RangeNotSatisfiable("m", size=9), 416, BAD, "range_not_satisfiable", "gateway", False),
    (MissingKey("m"), 401, BAD, None, "gateway", False),
    (InvalidKey("m"), 401, BAD, "invalid_api_key", "gateway", False),
    (ModelNotAllowed("m"), 403, BAD, "model_not_allowed", "gateway", False),
    (
        RateLimited("m", limit="tokens", retry_after_s=1),
        429,
        "tokens",
        "rate_limit_exceeded",
        "gateway",
        False,
    ),
    (
        RateLimited("m", limit="requests", retry_after_s=1),
        429,
        "requests",
        "rate_limit_exceeded",
        "gateway",
        False,
    ),
    (BudgetSpent("m"), 429, "insufficient_quota", "insufficient_quota", "gateway", True),
    (QueueFull("m"), 429, OURS, "overloaded", "gateway", False),
    (WaitTooLong("m"), 429, OURS, "overloaded", "gateway", False),
    (Shed("m"), 429, OURS, "overloaded", "gateway", False),
    (UpstreamError("m"), 502, OURS, "worker_unavailable", "worker", False),
    (InvalidAnswer("m"), 502, OURS, "worker_unavailable", "worker", False),
    (NoWorker("m"), 503, OURS, "no_worker", "gateway", False),
    (WorkerUnreachable("m"), 502, OURS, "worker_unavailable", "worker", False),
    (WorkerFull("m"), 429, OURS, "overloaded", "worker", False),
    (WorkerRejected("m"), 400, BAD, None, "worker", False),
    (WorkerFailedMidStream("m"), 502, OURS, "worker_unavailable", "worker", False),
    (WorkerTimeout("m"), 504, OURS, "upstream_timeout", "worker", False),
    (ShuttingDown("m"), 503, OURS, "worker_unavailable", "gateway", False),
    (Preempted("m"), 503, OURS, "overloaded", "gateway", False),
    (DeadlineExceeded("m"), 504, OURS, "deadline_exceeded", "gateway", True),
    (FileStoreError("m"), 503, OURS, "file_store_unavailable", "gateway", False),
    (InternalError("m"), 500, OURS, None, "gateway", True),
    (InferdError("m"), 500, OURS, None, "gateway", True),
    (ConfigError(["m"]), 500, OURS, None, "gateway", True),
    (StartError("m"), 500, OURS, None, "gateway", True),
    (StorageError("m"), 500, OURS, None, "gateway", True),
    (ProvisionError("m"), 500, OURS, None, "gateway", True),
]
SECRETIVE = (InternalError, ConfigError, StartError, StorageError, ProvisionError)


def headers_of(rendered: Rendered) -> dict[str, str]:
    headers = {name.decode(): value.decode() for name, value in rendered.headers}
    assert len(headers) == len(rendered.headers)
    return headers


def content_of(rendered: Rendered) -> dict[str, Any]:
    body = orjson.loads(rendered.body)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    content: dict[str, Any] = body["error"]
    return content


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "source", "final"),
    RENDERED,
    ids=[type(row[0]).__name__ for row in RENDERED],
)
def test_every_error_has_its_answer(
    error: InferdError, status: int, kind: str, code: str | None, source: str, final: bool
) -> None:
    rendered = render(error, "req_7")
    content, headers = content_of(rendered), headers_of(rendered)
    assert (rendered.status, content["type"], content["code"]) == (status, kind, code)
    assert content["param"] == error.param
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == "req_7"
    assert headers["x-inferd-source"] == source
    assert (headers.get("x-should-retry") == "false") is final
    if isinstance(error, SECRETIVE) or type(error) is InferdError:
        assert content["message"] == (
            "The server had an error while processing your request. "
            "Give the request id req_7 to whoever runs it."
        )
    else:
        assert content["message"] == "m"


def test_no_error_is_forgotten() -> None:
    classes = {
        cls
        for _, cls in inspect.getmembers(inferd.errors, inspect.isclass)
        if issubclass(cls, InferdError)
    }
    abstract = {inferd.errors.AuthError, inferd.errors.LimitError}
    assert {type(row[0]) for row in RENDERED} == classes - abstract


def test_an_unknown_exception_tells_its_request_id_and_nothing_else() -> None:
    rendered = render(ValueError("secret /etc/passwd"), "req_7")
    assert rendered.status == 500
    assert b"secret" not in rendered.body
    assert b"req_7" in rendered.body
    assert headers_of(rendered)["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("wait_s", "header", "final"),
    [
        (0, "1", False),
        (0.2, "1", False),
        (1.01, "2", False),
        (60, "60", False),
        (60.5, "61", True),
        (3_600, "3600", True),
        (float("inf"), None, True),
        (None, None, False),
    ],
)
def test_retry_after_is_the_true_wait_in_whole_seconds(
    wait_s: float | None, header: str | None, final: bool
) -> None:
    headers = headers_of(render(QueueFull("m", retry_after_s=wait_s), "req_7"))
    assert headers.get("retry-after") == header
    assert (headers.get("x-should-retry") == "false") is final


def test_a_wait_that_is_no_use_is_told_all_the_same() -> None:
    error = WaitTooLong("m", retry_after_s=3, client_retry=False)
    headers = headers_of(render(error, "req_7"))
    assert (headers["retry-after"], headers["x-should-retry"]) == ("3", "false")


def test_headers_of_single_statuses() -> None:
    assert headers_of(render(MethodNotAllowed("m", allow=("GET", "HEAD")), "r"))["allow"] == (
        "GET, HEAD"
    )
    assert headers_of(render(InvalidKey("m"), "r"))["www-authenticate"] == "Bearer"
    assert "www-authenticate" not in headers_of(render(ModelNotAllowed("m"), "r"))
    assert headers_of(render(BodyTimeout("m"), "r"))["connection"] == "close"


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (ConfigError(["inferd.toml:3: a", "inferd.toml:4: b"]), 400, BAD, "invalid_config"),
        (StorageError("disk full"), 500, OURS, "storage_error"),
        (ProvisionError("no engine"), 500, OURS, "provision_error"),
    ],
)
def test_an_operator_is_told_what_a_client_is_not(
    error: InferdError, status: int, kind: str, code: str
) -> None:
    rendered = render(error, "req_7", operator=True)
    content = content_of(rendered)
    assert (rendered.status, content["type"], content["code"]) == (status, kind, code)
    assert content["message"] == error.message
    assert b"ValueError" not in render(ValueError("x"), "req_7", operator=True).body


def test_an_odd_file_name_in_a_message_is_shown_escaped() -> None:
    rendered = render(StorageError("cannot open db\udcff"), "req_7", operator=True)
    assert content_of(rendered)["message"] == r"cannot open db\udcff"


def test_an_event_tells_the_four_keys_and_no_secret() -> None:
    told = error_content(WorkerFailedMidStream("The worker was lost."))
    assert told == {
        "message": "The worker was lost.",
        "type": OURS,
        "param": None,
        "code": "worker_unavailable",
    }
    unexpected = error_content(RuntimeError("secret"), "req_7")
    assert set(unexpected) == {"message", "type", "param", "code"}
    assert "req_7" in unexpected["message"]
    assert "secret" not in unexpected["message"]


async def test_respond_sends_the_whole_answer() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    rendered = render(UnknownUrl("m"), "req_7")
    await respond(send, rendered)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 404
    assert (b"content-length", str(len(rendered.body)).encode()) in sent[0]["headers"]
    assert sent[1]["body"] == rendered.body
    assert not sent[1].get("more_body", False)
