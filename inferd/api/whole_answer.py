"""The answer of a request that does not stream: collected whole, normalised, sent as one body.

Until it is whole the client has seen nothing, so a lost worker may be replaced by another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from inferd.errors import InvalidAnswer, UpstreamError
from inferd.inference import InferenceRequest, Usage
from inferd.upstream.answer import chat_answer, usage_of
from inferd.upstream.wire import ANSWER_BYTES_MAX

Normalise = Callable[[dict[str, Any], InferenceRequest, str], tuple[dict[str, Any], Usage]]
"""The engine's whole answer, its request and the response id -> the client's answer, its usage."""


class Collector:
    """Reads one attempt's body; says nothing before its end."""

    __slots__ = (
        "_attempt_id",
        "_left",
        "_normalise",
        "_parts",
        "_request",
        "_size",
        "done",
        "usage",
    )

    def __init__(
        self, request: InferenceRequest, attempt_id: str, normalise: Normalise = chat_answer
    ) -> None:
        self._request = request
        self._normalise = normalise
        self._attempt_id = attempt_id
        self._parts: list[bytes] = []
        self._size = 0
        self._left = False
        self.done = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """Keep the bytes.

        Raises:
            UpstreamError: more than `ANSWER_BYTES_MAX`.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size > ANSWER_BYTES_MAX:
            raise UpstreamError(f"The worker's answer is over {ANSWER_BYTES_MAX} bytes.")
        return b""

    def client_left(self) -> None:
        """An aborted answer is read to its end for its usage alone."""
        self._left = True

    def end(self) -> bytes:
        """The whole answer as the client gets it.

        Raises:
            UpstreamError: it is not an answer of the endpoint, or the engine aborted it.
        """
        self.done = True
        answer, self.usage = self._normalise(self._decode(), self._request, self._attempt_id)
        return orjson.dumps(answer)

    def bill(self) -> Usage:
        """The engine's usage, of an aborted answer too; zero without: nothing was delivered."""
        if self.usage is None:
            try:
                counts = self._decode().get("usage")
            except UpstreamError:
                counts = None
            if not isinstance(counts, dict):
                return Usage(estimated=self._left)
            self.usage = usage_of(counts)
        return self.usage

    def _decode(self) -> dict[str, Any]:
        try:
            value = orjson.loads(b"".join(self._parts))
        except orjson.JSONDecodeError as error:
            raise InvalidAnswer("The worker's answer is not JSON.") from error
        if not isinstance(value, dict):
            raise InvalidAnswer("The worker's answer is not a JSON object.")
        return value


class WholeAnswer:
    """A sink for `dispatch` that holds the one body."""

    __slots__ = ("_normalise", "body", "content_sent", "output_at")

    def __init__(self, normalise: Normalise) -> None:
        self._normalise = normalise
        self.body = b""
        self.content_sent = False
        self.output_at = 0.0

    def answer(self, request: InferenceRequest, attempt_id: str) -> Collector:
        return Collector(request, attempt_id, self._normalise)

    def push(self, data: bytes) -> bool:
        """Declines: nothing of a whole answer leaves before its end."""
        del data
        return False

    push_chunk = push

    async def send(self, data: bytes) -> None:
        self.body = data
