"""A POST that a worker answers: authenticate, validate, hand over to dispatch, answer or stream.

One class for every such endpoint; what differs is in its `Operation`.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from inferd.api.auth import authenticate
from inferd.api.disconnect import WhileClientWaits, client_of
from inferd.api.event_stream import EventStream
from inferd.api.headers import header
from inferd.api.read_body import read_body
from inferd.api.request_record import RequestRecord, record_of
from inferd.api.whole_answer import Normalise, WholeAnswer
from inferd.clock import monotonic, utc_now_us
from inferd.errors import InferdError, UnsupportedFeature
from inferd.inference import (
    NO_PREFIX,
    Endpoint,
    InferenceRequest,
    ModelKind,
    ModelLimits,
    Outcome,
    Prefix,
    Priority,
)
from inferd.routing.prefix import PrefixHasher
from inferd.tracing import traceparent_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from inferd.api.access import Access
    from inferd.api.parsed import LimitsOf, ParsedRequest, Tables
    from inferd.api.recorder import Recorder
    from inferd.config.schema import Server
    from inferd.dispatch import Dispatch
    from inferd.inference import Caller
    from inferd.quota.buckets import Buckets
    from inferd.quota.budgets import Budgets
    from inferd.quota.estimate import Estimator
    from inferd.routing.pools import Route
    from inferd.upstream.relay import StreamRelay

_log: Final = logging.getLogger(__name__)


EXPLAIN_HEADER: Final = b"x-inferd-explain"
"""With any value: the response says in `x-inferd-why` why it came from where it came."""
PATIENCE_HEADER: Final = b"x-stainless-read-timeout"
"""Seconds after which the SDK hangs up and asks again, if nothing came; events keep it waiting."""
PATIENCE: Final = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,20})?")
_SERVES: Final = {
    ModelKind.CHAT: f"{Endpoint.CHAT}, {Endpoint.COMPLETIONS} and {Endpoint.RESPONSES}",
    ModelKind.EMBEDDING: str(Endpoint.EMBEDDINGS),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What one endpoint does with a body and with the engine's answer."""

    endpoint: Endpoint
    summary: str
    tables: Tables
    """Its parameters beside `model`, as the published document shows them."""
    required: tuple[str, ...]
    kinds: frozenset[ModelKind]
    """Models that it may reach; a worker of another kind could die of the request."""
    parse: Callable[[bytes, LimitsOf, Priority], ParsedRequest]
    whole: Normalise
    relay: Callable[[InferenceRequest, str], StreamRelay] | None = None
    """Reads a streamed answer; None for an endpoint that has none."""


class InferenceEndpoint:
    """An ASGI endpoint. Holds nothing of a request beyond its call."""

    def __init__(  # noqa: PLR0913 - the owners that it asks, each by name
        self,
        operation: Operation,
        *,
        access: Access,
        dispatch: Dispatch,
        buckets: Buckets,
        budgets: Budgets,
        estimator: Estimator,
        server: Server,
        recorder: Recorder,
        caller_of: Callable[[Scope], Caller] | None = None,
    ) -> None:
        """`caller_of` tells who asks, where it is not the key that does; it raises AuthError."""
        self._operation = operation
        self._caller_of = caller_of or self._caller_by_key
        self._access = access
        self._dispatch = dispatch
        self._buckets = buckets
        self._budgets = budgets
        self._estimator = estimator
        self._server = server
        self._recorder = recorder
        self._hasher = PrefixHasher()

    @property
    def path(self) -> str:
        return self._operation.endpoint

    @property
    def operation(self) -> Operation:
        return self._operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        caller = self._caller_of(scope)
        record.team, record.key_id = caller.team, caller.key_id
        heard = self._recorder.begin(self._access.team(caller), record.request_id, self.path)
        if heard is None:
            await self._serve(caller, record, scope, receive, send)
            return
        try:
            await self._serve(caller, record, *heard.listen(scope, receive, send))
        finally:
            self._recorder.keep(heard)

    async def _serve(
        self, caller: Caller, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        why: dict[str, str] = {}
        record.headers = lambda: {
            **self._limits(record, caller),
            **self._budgets.headers(caller.team),
            **why,
        }
        request = await self._validate(scope, receive, caller, record)
        record.model, record.stream = request.pool, request.stream
        record.priority = request.priority
        if (traced := traceparent_of(header(scope["headers"], b"traceparent"))) is not None:
            request = replace(request, traceparent=traced)
        if header(scope["headers"], EXPLAIN_HEADER) is not None:
            request = replace(request, why=why)
        if request.stream:
            await self._stream(request, record, scope, send)
        else:
            patience_s = header(scope["headers"], PATIENCE_HEADER)
            if patience_s is not None and PATIENCE.fullmatch(patience_s):
                hangs_up = record.arrived + float(patience_s)
                request = replace(request, deadline=min(request.deadline, hangs_up))
            await self._whole(request, scope, send)

    def _caller_by_key(self, scope: Scope) -> Caller:
        return authenticate(scope["headers"], self._access.keys, utc_now_us())

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
        return self.prepare(raw, caller, record)

    def prepare(self, raw: bytes, caller: Caller, record: RequestRecord) -> InferenceRequest:
        """The validated request of a body, whoever brought it.

        Raises:
            RequestError, ModelNotAllowed: naming the parameter and what is allowed.
            InvalidKey: the caller's team is gone.
        """
        team = self._access.team(caller)
        route: Route | None = None

        def limits_of(name: str) -> ModelLimits:
            nonlocal route
            route = self._access.pools.resolve(name, caller, team)
            self._check_kind(route)
            return route.widest

        parsed = self._operation.parse(raw, limits_of, Priority(team.priority_max))
        assert route is not None, "parsing resolves the model"
        record.user_hash = parsed.user_hash
        rank = team.rank
        if parsed.tier_wanted and team.priority_tier_rank is not None:
            rank, parsed = team.priority_tier_rank, replace(parsed, service_tier="priority")
        return self._request(parsed, route, caller, record, rank)

    def _limits(self, record: RequestRecord, caller: Caller) -> dict[str, str]:
        model = (record.model or "").rpartition("@")[0]
        return self._buckets.headers(caller.team, monotonic(), model=model, key_id=caller.key_id)

    def _check_kind(self, route: Route) -> None:
        kind = route.limits.kind
        if kind not in self._operation.kinds:
            raise UnsupportedFeature(
                f"Unsupported value: the model `{route.model}` is of kind '{kind}' and is not "
                f"served at {self._operation.endpoint}. Use {_SERVES[kind]}.",
                code="unsupported_value",
                param="model",
            )

    def _request(
        self,
        parsed: ParsedRequest,
        route: Route,
        caller: Caller,
        record: RequestRecord,
        rank: int,
    ) -> InferenceRequest:
        prompt_tokens = parsed.prompt_tokens
        if parsed.prompt_bytes:
            prompt_tokens += self._estimator.estimate(route.limits.name, parsed.prompt_bytes)
        route = self._access.pools.choose(route, caller.team, prompt_tokens // parsed.prompts)
        limits = route.limits
        return InferenceRequest(
            request_id=record.request_id,
            team=caller.team,
            key_id=caller.key_id,
            endpoint=self._operation.endpoint,
            model=parsed.model,
            pool=route.pool,
            body=parsed.body,
            # Ids beside the text would spoil the ratio that is learnt from the engine's count.
            prompt_bytes=0 if parsed.prompt_tokens else parsed.prompt_bytes,
            prompt_tokens_estimated=min(prompt_tokens, limits.context_tokens_max * parsed.prompts),
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
            shared_cache=route.shared_cache,
            rank=rank,
            echo=parsed.echo,
            adapter=route.adapter,
            longer_pool=route.longer_pool,
            context_tokens_max=limits.context_tokens_max,
        )

    def _prefix(
        self, parsed: ParsedRequest, route: Route, caller: Caller, prompt_tokens: int
    ) -> Prefix:
        """Tools come first in every template. Teams that share no cache share no blocks."""
        body = parsed.body
        if "messages" in body:
            parts = [orjson.dumps(tool) for tool in body.get("tools", ())]
            parts += [orjson.dumps(message) for message in body["messages"]]
        elif parsed.prompts == 1 and "prompt" in body:
            parts = [orjson.dumps(body["prompt"])]
        else:
            return NO_PREFIX
        scope = "" if route.shared_cache else caller.team
        adapter = route.adapter.key if route.adapter else ""
        seed = f"{route.pool}\0{adapter}\0{scope}"
        return self._hasher.prefix(seed, parts, prompt_tokens, parsed.cache_hint)

    async def _whole(self, request: InferenceRequest, scope: Scope, send: Send) -> None:
        sink = WholeAnswer(self._operation.whole)
        with WhileClientWaits(client_of(scope)):
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
        send: Send,
    ) -> None:
        relay = self._operation.relay
        assert relay is not None, "only endpoints that stream parse `stream`"
        client = client_of(scope)
        stream = EventStream(client, send, new_relay=relay, stall_s=self._server.stall_s)
        with WhileClientWaits(client, stream):
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


def _output_tokens_max(parsed: ParsedRequest, limits: ModelLimits, prompt_tokens: int) -> int:
    """What is asked of the engine at first, if the client set no limit.

    Half the estimate is surely in the prompt. If that was too little the engine says how much is
    left, and dispatch asks for exactly that: an answer is never cut short by a wrong estimate.
    """
    if parsed.output_tokens_given:
        return parsed.output_tokens_max
    return max(1, min(parsed.output_tokens_max, limits.context_tokens_max - prompt_tokens // 2))
