"""POST /v1/chat/completions: authenticate, validate, and hand over to dispatch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from inferd.api.auth import authenticate
from inferd.api.disconnect import while_client_waits
from inferd.api.event_stream import EventStream
from inferd.api.headers import header
from inferd.api.read_body import read_body
from inferd.api.request_record import RequestRecord, record_of
from inferd.api.schema import ParsedChat, parse_chat
from inferd.api.whole_answer import WholeAnswer
from inferd.clock import monotonic, utc_now_us
from inferd.errors import InferdError
from inferd.inference import Endpoint, InferenceRequest, ModelLimits, Outcome, Prefix, Priority
from inferd.routing.prefix import PrefixHasher

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from inferd.api.access import Access
    from inferd.config.schema import Server
    from inferd.dispatch import Dispatch
    from inferd.inference import Caller
    from inferd.quota.buckets import Buckets
    from inferd.quota.estimate import Estimator
    from inferd.routing.pools import Route

_log: Final = logging.getLogger(__name__)


EXPLAIN_HEADER: Final = b"x-inferd-explain"
"""With any value: the response says in `x-inferd-why` why it came from where it came."""


class ChatCompletions:
    """An ASGI endpoint. Holds nothing of a request beyond its call."""

    def __init__(
        self,
        *,
        access: Access,
        dispatch: Dispatch,
        buckets: Buckets,
        estimator: Estimator,
        server: Server,
    ) -> None:
        self._access = access
        self._dispatch = dispatch
        self._buckets = buckets
        self._estimator = estimator
        self._server = server
        self._hasher = PrefixHasher()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        caller = authenticate(scope["headers"], self._access.keys, utc_now_us())
        record.team, record.key_id = caller.team, caller.key_id
        why: dict[str, str] = {}
        record.headers = lambda: {**self._buckets.headers(caller.team, monotonic()), **why}
        request = await self._validate(scope, receive, caller, record)
        record.model, record.stream = request.pool, request.stream
        record.priority = request.priority
        if header(scope["headers"], EXPLAIN_HEADER) is not None:
            request = replace(request, why=why)
        if request.stream:
            await self._stream(request, record, scope, receive, send)
        else:
            await self._whole(request, receive, send)

    async def _validate(
        self, scope: Scope, receive: Receive, caller: Caller, record: RequestRecord
    ) -> InferenceRequest:
        server = self._server
        raw = await read_body(
            receive,
            scope["headers"],
            bytes_max=server.body_bytes_max,
            timeout_s=server.body_timeout_s,
        )
        team = self._access.team(caller)
        route: Route | None = None

        def limits_of(name: str) -> ModelLimits:
            nonlocal route
            route = self._access.pools.resolve(name, caller, team)
            return route.limits

        parsed = parse_chat(raw, limits_of, priority_max=Priority(team.priority_max))
        assert route is not None, "parsing resolves the model"
        record.user_hash = parsed.user_hash
        return self._request(parsed, route, caller, record, team.rank)

    def _request(
        self, parsed: ParsedChat, route: Route, caller: Caller, record: RequestRecord, rank: int
    ) -> InferenceRequest:
        limits = route.limits
        prompt_tokens = self._estimator.estimate(limits.name, parsed.prompt_bytes)
        return InferenceRequest(
            request_id=record.request_id,
            team=caller.team,
            key_id=caller.key_id,
            endpoint=Endpoint.CHAT,
            model=parsed.model,
            pool=route.pool,
            body=parsed.body,
            prompt_bytes=parsed.prompt_bytes,
            prompt_tokens_estimated=min(prompt_tokens, limits.context_tokens_max),
            output_tokens_max=_output_tokens_max(parsed, limits, prompt_tokens),
            output_tokens_given=parsed.output_tokens_given,
            choices=parsed.choices,
            stream=parsed.stream,
            include_usage=parsed.include_usage,
            priority=parsed.priority,
            deadline=record.arrived + self._server.request_deadline_s,
            one_tool_call=not parsed.parallel_tool_calls,
            service_tier=parsed.service_tier,
            metadata=parsed.metadata,
            prefix=self._prefix(parsed, route, caller, prompt_tokens),
            rank=rank,
        )

    def _prefix(
        self, parsed: ParsedChat, route: Route, caller: Caller, prompt_tokens: int
    ) -> Prefix:
        """Tools come first in every template. Teams share no cache, so they share no blocks."""
        body = parsed.body
        parts = [orjson.dumps(tool) for tool in body.get("tools", ())]
        parts += [orjson.dumps(message) for message in body["messages"]]
        return self._hasher.prefix(f"{route.pool}\0{caller.team}", parts, prompt_tokens)

    async def _whole(self, request: InferenceRequest, receive: Receive, send: Send) -> None:
        sink = WholeAnswer()
        async with while_client_waits(receive):
            await self._dispatch.run(request, sink)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(sink.body)).encode("ascii")),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": sink.body})

    async def _stream(
        self,
        request: InferenceRequest,
        record: RequestRecord,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        stream = EventStream(scope, send, stall_s=self._server.stall_s)
        async with while_client_waits(receive, stream):
            try:
                await self._dispatch.run(request, stream)
            except Exception as error:
                if not stream.started:
                    raise
                record.outcome = Outcome.FAILED
                if isinstance(error, InferdError):
                    record.error = error
                else:
                    _log.exception("Unexpected error inside a stream; the client is told of one.")
                await stream.fail(error, record.request_id)
            else:
                await stream.end()


def _output_tokens_max(parsed: ParsedChat, limits: ModelLimits, prompt_tokens: int) -> int:
    """What is asked of the engine at first, if the client set no limit.

    Half the estimate is surely in the prompt. If that was too little the engine says how much is
    left, and dispatch asks for exactly that: an answer is never cut short by a wrong estimate.
    """
    if parsed.output_tokens_given:
        return parsed.output_tokens_max
    return max(1, min(parsed.output_tokens_max, limits.context_tokens_max - prompt_tokens // 2))
