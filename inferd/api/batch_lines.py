"""One line of a batch on the data path that every request takes; only its sink is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from inferd.api.error_body import render
from inferd.api.inference_endpoint import InferenceEndpoint
from inferd.api.request_record import RequestRecord
from inferd.api.whole_answer import Collector, Normalise, WholeAnswer
from inferd.batch.line import Bills, LineCall
from inferd.clock import monotonic
from inferd.dispatch import Dispatch
from inferd.inference import Caller, Endpoint, InferenceRequest, Priority

FLEX: Final = "flex"


class BatchLines:
    """Answers the lines of batches. Holds nothing of a line beyond its call."""

    def __init__(
        self, endpoints: Iterable[InferenceEndpoint], dispatch: Dispatch, bills: Bills
    ) -> None:
        self.bills = bills
        self._endpoints = {one.operation.endpoint: one for one in endpoints}
        self._dispatch = dispatch

    async def answer(self, call: LineCall) -> bytes:
        """The whole answer's body.

        Raises:
            InferdError: refused or failed; what of it was billed goes to `call.record`.
        """
        endpoint = self._endpoints[Endpoint(call.endpoint)]
        record = RequestRecord(call.request_id, monotonic())
        request = endpoint.prepare(call.body, Caller(call.team, call.key_id), record)
        request = replace(
            request,
            priority=Priority.BATCH,
            deadline=call.deadline,
            service_tier=FLEX if request.service_tier is not None else None,
        )
        sink = _PlacedAnswer(endpoint.operation.whole, call.placed)
        await self._dispatch.run(request, sink, call.record)
        return sink.body

    @staticmethod
    def render(error: BaseException, request_id: str) -> tuple[int, bytes]:
        """Status and body of an error, as any client gets it."""
        rendered = render(error, request_id)
        return rendered.status, rendered.body


class _PlacedAnswer(WholeAnswer):
    """Says when a worker has the request."""

    __slots__ = ("_placed",)

    def __init__(self, normalise: Normalise, placed: Callable[[], None]) -> None:
        super().__init__(normalise)
        self._placed = placed

    def answer(self, request: InferenceRequest, attempt_id: str) -> Collector:
        self._placed()
        return super().answer(request, attempt_id)
