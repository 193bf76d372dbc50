"""Spans of requests and attempts, and what the engine is told of them."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferd.errors import InferdError, StartError
from inferd.tracing import Tracing, opened, traceparent_of
from tests.paths.data_path import CollectedStream, DataPath

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SENTINEL = "zaphod-beeblebrox-4711"


def traced(path: DataPath) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    path.ledger.tracing = Tracing(provider)
    return exporter


async def test_a_request_and_each_attempt_have_a_span_below_the_clients() -> None:
    path = DataPath("w1", "w2")
    exporter = traced(path)
    path.workers["w1"].refuses_connections = True
    body = {"messages": [{"role": "user", "content": SENTINEL}]}
    async with path.serving():
        for _ in range(4):
            request = path.request(traceparent=CLIENT, body=body)
            await path.dispatch.run(request, CollectedStream())
    spans = exporter.get_finished_spans()
    requests = [span for span in spans if span.name != "attempt"]
    attempts = [span for span in spans if span.name == "attempt"]
    assert len(requests) == 4
    assert len(attempts) == sum(row.attempts for row in path.rows)
    for span in spans:
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == CLIENT.split("-")[1]
        assert SENTINEL not in span.to_json()
    for span, row in zip(requests, path.rows, strict=True):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == CLIENT.split("-")[2]
        assert span.attributes is not None
        assert span.attributes["gen_ai.usage.output_tokens"] == row.completion_tokens == 10
        assert span.attributes["inferd.request_id"] == row.request_id
    told = {one.split("-")[2] for one in path.workers["w2"].traced}
    ids = {f"{span.context.span_id:016x}" for span in attempts if span.context is not None}
    assert told
    assert told <= ids


async def test_a_failure_is_an_error_of_its_span() -> None:
    path = DataPath("w1")
    exporter = traced(path)
    path.workers["w1"].refuses_connections = True
    async with path.serving():
        with pytest.raises(InferdError):
            await path.dispatch.run(path.request(), CollectedStream())
    (span,) = [span for span in exporter.get_finished_spans() if span.name != "attempt"]
    assert not span.status.is_ok
    assert span.parent is None


async def test_without_tracing_the_engine_is_told_what_the_client_told() -> None:
    path = DataPath("w1")
    async with path.serving():
        await path.dispatch.run(path.request(traceparent=CLIENT), CollectedStream())
        await path.dispatch.run(path.request(), CollectedStream())
    assert path.workers["w1"].traced == [CLIENT]


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (CLIENT.encode(), CLIENT),
        (None, None),
        (b"", None),
        (CLIENT.encode() + b"\r\nx: y", None),
        (b"01" + CLIENT.encode()[2:], None),
        (CLIENT.upper().encode(), None),
    ],
)
def test_only_what_has_the_form_of_one_is_a_traceparent(
    header: bytes | None, found: str | None
) -> None:
    assert traceparent_of(header) == found


async def test_an_endpoint_without_the_sdk_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartError, match=r"pip install 'inferd\[tracing\]'"):
        async with opened("http://127.0.0.1:4318/v1/traces", 1.0):
            pass
    async with opened(None, 1.0) as nothing:
        assert nothing is None
