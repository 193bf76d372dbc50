"""Spans of requests and of their attempts, by OpenTelemetry. Owns the provider while it is on.

Off unless `[tracing].endpoint` is set; then the SDK is needed (`inferd[tracing]`), whose own thread
sends. A span holds ids, names and counts, never a prompt or an answer. When off, a request's
`traceparent` still reaches its engine as the client sent it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from inferd.errors import StartError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LOST_S_MAX: Final = 5_000
"""Milliseconds that the last spans may take to be sent."""

Attributes: TypeAlias = Mapping[str, str | int | float | bool]


def traceparent_of(header: bytes | None) -> str | None:
    """A client's header if it has the form of one."""
    if header is None:
        return None
    text = header.decode("latin-1")
    return text if _TRACEPARENT.fullmatch(text) else None


class Tracing:
    """Starts the span of each request."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("inferd")

    def request(self, name: str, parent: str | None) -> RequestSpan:
        """The span of a request, below its client's if it told one."""
        return RequestSpan(self._tracer, name, parent)


class RequestSpan:
    """A request's span and that of its present attempt."""

    __slots__ = ("_attempt", "_span", "_tracer")

    def __init__(self, tracer: Tracer, name: str, parent: str | None) -> None:
        from opentelemetry.trace import SpanKind

        self._tracer = tracer
        self._attempt: Span | None = None
        self._span = tracer.start_span(name, _context_of(parent), kind=SpanKind.SERVER)

    @property
    def traceparent(self) -> str:
        """For whoever does the next part of it."""
        told = (self._attempt or self._span).get_span_context()
        return f"00-{told.trace_id:032x}-{told.span_id:016x}-{told.trace_flags:02x}"

    def attempt(self, attributes: Attributes) -> None:
        """It was placed on a worker: one more attempt, the one before is over."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._end_attempt()
        self._attempt = self._tracer.start_span(
            "attempt",
            set_span_in_context(self._span),
            kind=SpanKind.CLIENT,
            attributes=dict(attributes),
        )

    def end(self, attributes: Attributes, error: str | None) -> None:
        """It is settled."""
        from opentelemetry.trace import StatusCode

        self._end_attempt()
        self._span.set_attributes(dict(attributes))
        if error is not None:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None


@asynccontextmanager
async def opened(endpoint: str | None, sample_ratio: float) -> AsyncIterator[Tracing | None]:
    """Spans go to the endpoint while inside; None where there is none.

    Raises:
        StartError: the SDK is not installed.
    """
    if endpoint is None:
        yield None
        return
    provider = _provider(endpoint, sample_ratio)
    try:
        yield Tracing(provider)
    finally:
        await asyncio.to_thread(provider.force_flush, _LOST_S_MAX)
        await asyncio.to_thread(provider.shutdown)


def _provider(endpoint: str, sample_ratio: float) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise StartError(
            "[tracing].endpoint needs OpenTelemetry's SDK, which is not installed: pip install"
            " 'inferd[tracing]', or take the endpoint away."
        ) from error
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        resource=Resource.create({"service.name": "inferd"}),
        shutdown_on_exit=False,
    )
    url = endpoint.rstrip("/") + "/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider


def _context_of(parent: str | None) -> Context | None:
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    found = _TRACEPARENT.fullmatch(parent or "")
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found.groups())
    told = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(told))
