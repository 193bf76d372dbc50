"""The outermost layer: ids, error bodies, one log line and one count for every request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd.api.disconnect import ClientGoneError
from inferd.api.middleware import Envelope
from inferd.api.request_record import record_of
from inferd.errors import InvalidField, NoWorker, StorageError
from inferd.inference import Outcome
from inferd.logs import REQUEST_ID

Counted = tuple[str, str, int]


class Handler:
    """An ASGI endpoint that is no function, so that nothing stands between it and the server."""

    def __init__(self, run: Callable[[Scope, Send], Awaitable[None]]) -> None:
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, send)


async def hello(scope: Scope, send: Send) -> None:
    await PlainTextResponse("hello")(scope, receive_nothing, send)


async def receive_nothing() -> Message:
    return {"type": "http.request"}


def scope_of(
    path: str = "/v1/things/7",
    method: str = "GET",
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Scope:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers or [],
    }


class Client:
    """Sends requests to one handler behind the layer and keeps what came back."""

    def __init__(
        self,
        run: Callable[[Scope, Send], Awaitable[None]] = hello,
        *,
        operator: bool = False,
        app: ASGIApp | None = None,
    ) -> None:
        routes = [Route("/v1/things/{id}", Handler(run), methods=["GET", "POST"])]
        self.app = Envelope(
            app or Router(routes, redirect_slashes=False),
            count=self._count,
            routes=routes,
            operator=operator,
        )
        self.counted: list[Counted] = []
        self.sent: list[Message] = []

    def _count(self, route: str, method: str, status: int) -> None:
        self.counted.append((route, method, status))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def ask(self, scope: Scope | None = None) -> Client:
        self.sent.clear()
        await self.app(scope or scope_of(), receive_nothing, self._send)
        return self

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        pairs = self.sent[0]["headers"]
        headers = {name.decode(): value.decode() for name, value in pairs}
        assert len(headers) == len(pairs)
        return headers

    @property
    def error(self) -> dict[str, Any]:
        body = b"".join(message["body"] for message in self.sent[1:])
        error: dict[str, Any] = orjson.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def raising(error: BaseException) -> Callable[[Scope, Send], Awaitable[None]]:
    async def run(scope: Scope, send: Send) -> None:
        raise error

    return run


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO)
    return lambda: [record for record in caplog.records if record.name == "inferd.access"]


async def test_every_response_has_its_request_id() -> None:
    client = Client()
    first = (await client.ask()).headers
    second = (await client.ask()).headers
    assert first["x-request-id"].startswith("req_")
    assert first["x-request-id"] != second["x-request-id"]
    assert first["openai-version"] == "2020-10-01"
    assert int(first["openai-processing-ms"]) >= 0
    assert first["content-type"] == "text/plain; charset=utf-8"


async def test_the_id_is_that_of_the_log_and_the_record() -> None:
    seen: list[str | None] = []

    async def run(scope: Scope, send: Send) -> None:
        seen.extend([REQUEST_ID.get(), record_of(scope).request_id])
        await hello(scope, send)

    client = await Client(run).ask()
    assert seen == [client.headers["x-request-id"]] * 2
    assert REQUEST_ID.get() is None


async def test_a_raised_error_is_rendered_with_the_same_headers() -> None:
    client = await Client(raising(InvalidField("Invalid 'n': no.", param="n"))).ask()
    assert (client.status, client.error["code"], client.error["param"]) == (
        400,
        "invalid_value",
        "n",
    )
    assert client.headers["x-request-id"].startswith("req_")
    assert client.headers["x-inferd-source"] == "gateway"
    assert client.headers["openai-version"] == "2020-10-01"
    assert client.counted == [("/v1/things/{id}", "GET", 400)]


async def test_the_one_error_of_a_group_is_the_error() -> None:
    inner = NoWorker("No worker is ready.", retry_after_s=3)
    client = await Client(raising(ExceptionGroup("g", [ExceptionGroup("h", [inner])]))).ask()
    assert (client.status, client.error["code"]) == (503, "no_worker")
    assert client.headers["retry-after"] == "3"


async def test_an_unexpected_exception_becomes_a_500_and_a_log_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = await Client(raising(KeyError("secret"))).ask()
    assert client.status == 500
    assert "secret" not in client.error["message"]
    assert client.headers["x-request-id"] in client.error["message"]
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == 1


async def test_only_an_operator_is_told_of_the_disk() -> None:
    error = StorageError("inferd.db: disk full")
    assert "disk" not in (await Client(raising(error)).ask()).error["message"]
    operator = await Client(raising(error), operator=True).ask()
    assert operator.error["code"] == "storage_error"
    assert "disk full" in operator.error["message"]


async def test_an_unknown_url_is_told_in_the_envelope() -> None:
    client = await Client().ask(scope_of("/v1/nope" + "x" * 5_000, "POST"))
    assert (client.status, client.error["code"]) == (404, "unknown_url")
    assert "POST /v1/nope" in client.error["message"]
    assert len(client.error["message"]) < 200
    assert client.counted == [("unknown", "POST", 404)]


async def test_a_wrong_method_is_told_what_is_allowed() -> None:
    client = await Client().ask(scope_of(method="DELETE"))
    assert (client.status, client.error["code"]) == (405, "method_not_supported")
    assert set(client.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert client.counted == [("/v1/things/{id}", "DELETE", 405)]


async def test_no_trailing_slash_is_redirected() -> None:
    client = await Client().ask(scope_of("/v1/things/7/"))
    assert client.status == 404


async def test_an_error_after_the_start_goes_to_the_server_which_cuts_the_connection() -> None:
    async def run(scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("late")

    client = Client(run)
    with pytest.raises(KeyError, match="late"):
        await client.ask()
    assert [message["type"] for message in client.sent] == ["http.response.start"]
    assert client.counted == [("/v1/things/{id}", "GET", 200)]


async def test_a_client_that_left_gets_no_answer_and_a_499_in_the_log(
    lines: Callable[[], list[logging.LogRecord]],
) -> None:
    client = await Client(raising(ClientGoneError())).ask()
    assert client.sent == []
    assert client.counted == [("/v1/things/{id}", "GET", 499)]
    assert vars(lines()[0])["outcome"] == Outcome.CLIENT_LEFT


async def test_a_cancelled_request_is_counted_too() -> None:
    client = Client(raising(asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await client.ask()
    assert client.counted == [("/v1/things/{id}", "GET", 499)]


async def test_chunks_after_the_start_go_to_the_servers_send_untouched() -> None:
    sent: list[Message] = []
    tokens: list[Awaitable[None]] = []

    def send(message: Message) -> Awaitable[None]:
        sent.append(message)
        token: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        token.set_result(None)
        tokens.append(token)
        return token

    async def run(scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        for message in chunks:
            returned = send(message)
            assert returned is tokens[-1]  # no coroutine of ours around it
            await returned

    chunks: list[Message] = [
        {"type": "http.response.body", "body": b"%d" % i, "more_body": i < 2} for i in range(3)
    ]
    await Client(run).app(scope_of(), receive_nothing, send)
    assert all(got is chunk for got, chunk in zip(sent[1:], chunks, strict=True))


async def test_one_log_line_says_what_happened(
    lines: Callable[[], list[logging.LogRecord]],
) -> None:
    async def run(scope: Scope, send: Send) -> None:
        record = record_of(scope)
        record.team, record.key_id, record.model = "search", "key_1", "demo"
        record.stream, record.priority = True, "interactive"
        await asyncio.sleep(1.5)
        await hello(scope, send)

    headers = [
        (b"authorization", b"Bearer sk-inferd-secret"),
        (b"x-stainless-retry-count", b"2"),
        (b"x-client-request-id", b"mine-7"),
    ]
    await Client(run).ask(scope_of(headers=headers))
    (line,) = lines()
    fields = vars(line)
    expected = {
        "route": "/v1/things/{id}",
        "method": "GET",
        "status": 200,
        "outcome": Outcome.COMPLETED,
        "team": "search",
        "key_id": "key_1",
        "model": "demo",
        "stream": True,
        "priority": "interactive",
        "retry_count": 2,
        "client_request_id": "mine-7",
    }
    assert {name: fields[name] for name in expected} == expected
    assert fields["duration_s"] == pytest.approx(1.5)
    assert "error_code" not in fields
    assert "sk-inferd" not in str(fields)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-stainless-retry-count", b"-1"), (b"x-client-request-id", b"\xff")],
        [(b"x-stainless-retry-count", b"9" * 5_000), (b"x-client-request-id", b"a" * 513)],
    ],
)
async def test_odd_client_headers_are_not_logged(
    headers: list[tuple[bytes, bytes]], lines: Callable[[], list[logging.LogRecord]]
) -> None:
    await Client().ask(scope_of(headers=headers))
    assert not {"retry_count", "client_request_id"} & set(vars(lines()[0]))


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (InvalidField("m", param="n"), Outcome.REFUSED, "invalid_value"),
        (NoWorker("m"), Outcome.FAILED, "no_worker"),
    ],
)
async def test_the_line_of_an_error_has_its_code(
    error: Exception,
    outcome: Outcome,
    code: str,
    lines: Callable[[], list[logging.LogRecord]],
) -> None:
    await Client(raising(error)).ask()
    fields = vars(lines()[0])
    assert (fields["outcome"], fields["error_code"]) == (outcome, code)


async def test_a_handler_may_say_how_it_ended(
    lines: Callable[[], list[logging.LogRecord]],
) -> None:
    async def run(scope: Scope, send: Send) -> None:
        record_of(scope).outcome = Outcome.FAILED
        await hello(scope, send)

    await Client(run).ask()
    assert vars(lines()[0])["outcome"] == Outcome.FAILED


async def test_probes_are_not_in_the_log(lines: Callable[[], list[logging.LogRecord]]) -> None:
    client = Client(app=Router([Route("/healthz", Handler(hello))]))
    await client.ask(scope_of("/healthz"))
    assert lines() == []
    assert client.counted == [("/healthz", "GET", 200)]


class SlowWriter:
    """Behind until told otherwise."""

    def __init__(self) -> None:
        self._done = asyncio.Event()

    @property
    def behind(self) -> bool:
        return not self._done.is_set()

    async def caught_up(self) -> None:
        await self._done.wait()

    def catch_up(self) -> None:
        self._done.set()


async def test_a_request_waits_for_a_writer_that_is_behind_and_a_probe_does_not() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        await hello(scope, send)

    writer = SlowWriter()
    client = Client()
    envelope = Envelope(app, count=client._count, writer=writer)
    async with asyncio.TaskGroup() as group:
        for path in ("/v1/things/7", "/healthz"):
            group.create_task(envelope(scope_of(path), receive_nothing, client._send))
        await asyncio.sleep(1)
        assert seen == ["/healthz"]
        writer.catch_up()
    assert seen == ["/healthz", "/v1/things/7"]


async def test_what_is_not_http_passes_by() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    await Client(app=app).app({"type": "lifespan"}, receive_nothing, Client()._send)
    assert seen == [{"type": "lifespan"}]
