"""Which path does what, who may call it, and how a refusal looks."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import orjson

from tests.fake_engine import shapes
from tests.fake_engine.calls import Call
from tests.fake_engine.chat import ChatCall
from tests.fake_engine.completions import CompletionCall
from tests.fake_engine.control import Control
from tests.fake_engine.embeddings import die
from tests.fake_engine.engine import Engine
from tests.fake_engine.faults import Fault
from tests.fake_engine.probes import Probes
from tests.fake_engine.refusal import Refusal
from tests.fake_engine.schema import (
    ChatRequest,
    CompletionRequest,
    Sampling,
    ValidationProblem,
    check_media_type,
    parse,
)
from tests.fake_engine.wire import Exchange

Handler = Callable[[Exchange], Awaitable[None]]
_OPEN = frozenset({"/health", "/health_generate", "/ready", "/ping", "/metrics"})
_ADMIN = frozenset(
    {
        "/abort_request",
        "/flush_cache",
        "/pause_generation",
        "/continue_generation",
        "/update_weight_version",
        "/load_lora_adapter",
        "/unload_lora_adapter",
    }
)
_PROBES = _OPEN | {"/v1/loads"}
_OVERRIDES = "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"


def _table(
    control: Control, probes: Probes, chat: Handler, text: Handler
) -> dict[tuple[str, str], Handler]:
    return {
        ("GET", "/ready"): probes.ready,
        ("GET", "/health"): probes.health,
        ("GET", "/health_generate"): probes.health,
        ("GET", "/ping"): probes.ping,
        ("GET", "/v1/loads"): probes.loads,
        ("GET", "/metrics"): probes.metrics,
        ("GET", "/v1/models"): control.models,
        ("GET", "/model_info"): control.model_info,
        ("GET", "/get_model_info"): control.model_info,
        ("GET", "/server_info"): control.server_info,
        ("GET", "/get_server_info"): control.server_info,
        ("POST", "/v1/tokenize"): control.tokenize,
        ("POST", "/v1/embeddings"): control.embeddings,
        ("POST", "/abort_request"): control.abort,
        ("POST", "/flush_cache"): control.flush_cache,
        ("GET", "/flush_cache"): control.flush_cache,
        ("POST", "/pause_generation"): control.pause,
        ("POST", "/continue_generation"): control.resume,
        ("POST", "/update_weight_version"): control.weight_version,
        ("POST", "/load_lora_adapter"): control.load_adapter,
        ("POST", "/unload_lora_adapter"): control.unload_adapter,
        ("POST", "/v1/chat/completions"): chat,
        ("POST", "/v1/completions"): text,
        ("POST", "/fake/fault"): control.fault,
        ("GET", "/fake/stats"): control.stats,
    }


class Routes:
    """Dispatches one exchange."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._control = Control(engine)
        self._handlers = _table(self._control, Probes(engine), self._chat, self._text)
        self._paths = {path for _, path in self._handlers}
        self._overrides = os.environ.get(_OVERRIDES, "") in {"1", "true"}

    async def __call__(self, exchange: Exchange) -> None:
        """Serve one request."""
        if exchange.path.startswith("/fake/"):
            await self._dispatch(exchange)
            return
        self._engine.seen.counts[f"{exchange.method} {exchange.path}"] += 1
        if await self._hang(exchange):
            return
        if not self._authorized(exchange):
            exchange.respond(401, b'{"error":"Unauthorized"}', vary=False)
            return
        metrics = self._engine.metrics
        metrics.count_http(exchange.method, exchange.path, None)
        await self._dispatch(exchange)
        if exchange.status is not None:
            metrics.count_http(exchange.method, exchange.path, exchange.status)

    async def _dispatch(self, exchange: Exchange) -> None:
        handler = self._handlers.get((exchange.method, exchange.path))
        if handler is None and exchange.path.startswith("/v1/models/"):
            handler = self._control.model
        if handler is not None:
            await handler(exchange)
        elif exchange.path in self._paths:
            methods = ", ".join(method for method, path in self._handlers if path == exchange.path)
            exchange.respond(405, b'{"detail":"Method Not Allowed"}', more=[("allow", methods)])
        else:
            exchange.respond_json(404, {"detail": "Not Found"})

    async def _hang(self, exchange: Exchange) -> bool:
        fault = self._engine.faults.find("hang")
        if fault is None or (fault.flag("probes") and exchange.path in _PROBES):
            return False
        await exchange.gone.wait()
        return True

    def _authorized(self, exchange: Exchange) -> bool:
        if exchange.path in _OPEN:
            return True
        options = self._engine.options
        sent = exchange.headers.get("authorization", "")
        if exchange.path in _ADMIN and options.admin_api_key is not None:
            return sent == f"Bearer {options.admin_api_key}"
        return options.api_key is None or sent == f"Bearer {options.api_key}"

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, ChatRequest)

    async def _text(self, exchange: Exchange) -> None:
        await self._generate(exchange, CompletionRequest)

    async def _generate(self, exchange: Exchange, kind: type[Sampling]) -> None:
        engine = self._engine
        if engine.options.is_embedding:
            die()
        try:
            shown = orjson.loads(exchange.body)
        except orjson.JSONDecodeError:
            shown = exchange.body.decode("utf-8", "replace")
        engine.seen.note(exchange.method, exchange.path, exchange.headers, shown)
        plan = engine.faults.take(exchange.body)
        if fault := plan.get("error"):
            _refuse_by_fault(exchange, fault)
            return
        try:
            request = self._parse(exchange, kind)
            request.adapter = engine.adapters.asked(request.model, request.lora_path)
        except ValidationProblem as problem:
            message = problem.message(exchange.path)
            exchange.respond(400, shapes.error(400, message, "Bad Request"))
            return
        except Refusal as refusal:
            _refuse(exchange, refusal)
            return
        call: ChatCall | CompletionCall | None = None
        if isinstance(request, ChatRequest):
            call = ChatCall(engine, exchange, request, plan)
        elif isinstance(request, CompletionRequest):
            call = CompletionCall(engine, exchange, request, plan)
        if call is not None and await self._met(call):
            await _serve(call)
            if request.bootstrap_room is not None:
                engine.split.computed(request.bootstrap_room)

    async def _met(self, call: ChatCall | CompletionCall) -> bool:
        """Whether the sides of a split engine are together; one that is whole always is."""
        split, request = self._engine.split, call.request
        if split.mode == "null":
            return True
        if split.mode == "prefill":
            request.max_tokens = 1
        leaving = self._engine.tasks.create_task(split.gone(call.exchange, call.rid))
        try:
            await split.meet(
                call.rid, request.bootstrap_room, request.bootstrap_host, request.bootstrap_port
            )
        except Refusal as refusal:
            if not call.exchange.gone.is_set():
                _refuse(call.exchange, refusal)
            return False
        finally:
            leaving.cancel()
        return True

    def _parse(self, exchange: Exchange, kind: type[Sampling]) -> Sampling:
        check_media_type(exchange.headers.get("content-type", ""))
        request: Sampling = parse(exchange.body, kind)
        if self._overrides and kind is ChatRequest:
            request.rid = exchange.headers.get("x-override-rid", request.rid)
            priority = exchange.headers.get("x-override-priority")
            if priority is not None:
                try:
                    request.priority = int(priority)
                except ValueError as error:
                    message = f"invalid x-override-priority header {priority!r}: {error}"
                    raise Refusal(400, message, "400") from None
        return request


async def _serve(call: ChatCall | CompletionCall) -> None:
    try:
        await call.serve()
    except Refusal as refusal:
        _refuse_call(call, refusal)


def _refuse_call(call: Call, refusal: Refusal) -> None:
    if refusal.late:
        # The grammar failed inside the engine: it has run one token of a one-token prompt.
        call.engine.metrics.failed_inside(call.request.stream, call.request.priority)
    if refusal.late and call.request.stream:
        call.fail_stream(refusal.status, refusal.message, "BAD_REQUEST")
    else:
        _refuse(call.exchange, refusal)


def _refuse(exchange: Exchange, refusal: Refusal) -> None:
    exchange.respond(refusal.status, shapes.error(refusal.status, refusal.message, refusal.kind))


def _refuse_by_fault(exchange: Exchange, fault: Fault) -> None:
    status = fault.count("status", 500)
    message = fault.text("message", "Internal server error: CUDA error: device-side assert")
    kind = fault.text("type", "InternalServerError")
    exchange.respond(status, shapes.error(status, message, kind))
