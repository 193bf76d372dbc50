"""One stream on its way from a worker to a client: bytes in, bytes out.

Owned by one attempt. Of a chat stream almost nothing is decoded: the first frame, frames with a
finish reason, usage, a tool call or an error, and all frames of n > 1 or of a worker that does not
write JSON as SGLang does. Usage is kept and told once, in the last chunk, if the client asked for
it. After `[DONE]` nothing follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from inferd.errors import InferdError, InvalidAnswer, WorkerUnreachable
from inferd.inference import Usage
from inferd.upstream.answer import (
    bytes_per_token,
    choices_of,
    finish_reason_of,
    tokens_of,
    usage_body,
    usage_of,
)
from inferd.upstream.engine_error import from_event
from inferd.upstream.frames import END, FrameSplitter, decode, encode, frames_of, payload_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inferd.inference import InferenceRequest

DONE: Final = b"data: [DONE]\n\n"
TOKEN_CHARS_MAX: Final = 16
"""Of a script that writes no spaces: what is longer is several tokens."""
# Substrings that mark a frame to look into. Inside JSON strings a quote is escaped, so text that a
# model writes cannot look like one of these keys.
_FINISH: Final = b'"finish_reason":"'
_USAGE: Final = b'"usage":{'
_ANY_USAGE: Final = b'"usage":'
_ERROR: Final = b'"error":'
_TOOLS: Final = b'"tool_calls":['
_DONE: Final = b"[DONE]"
_COMPACT: Final = b'"choices":[{"index":'
_OBJECT_END: Final = b"}\n\n"
_USAGE_NULL: Final = b',"usage":null}\n\n'
_USUAL_END: Final = b'"finish_reason":null,"matched_stop":null}]}\n\n'
"""How SGLang ends an event of one choice that says nothing but text."""
_LINE_END: Final = b"\r\n"
_USUAL_CHUNK_END: Final = _USUAL_END + _LINE_END
_USUAL_CHUNK_BYTES_MAX: Final = 2_048


def _chunk_heads() -> tuple[bytes, ...]:
    """The size line of a chunk, by the bytes of the whole chunk: to look it up is cheapest."""
    heads = [b"\0"] * _USUAL_CHUNK_BYTES_MAX  # there is no chunk of so many bytes
    for size in range(_USUAL_CHUNK_BYTES_MAX):
        head = b"%x\r\n" % size
        whole = len(head) + size + len(_LINE_END)
        if whole < _USUAL_CHUNK_BYTES_MAX:
            heads[whole] = head
    return tuple(heads)


_CHUNK_HEADS: Final = _chunk_heads()


class StreamRelay(ABC):
    """Feeds on a worker's event stream; what `feed` returns goes to the client as it is."""

    __slots__ = (
        "_bytes_per_token",
        "_choices",
        "_created",
        "_finished",
        "_include_usage",
        "_left",
        "_model",
        "_opened",
        "_pass_through",
        "_passing",
        "_prompt_tokens_estimated",
        "_response_id",
        "_several",
        "_splitter",
        "_text_bytes",
        "_tokens_max",
        "_tokens_per_event",
        "_usual_start",
        "done",
        "events",
        "usage",
    )

    object_name: ClassVar[str]

    def __init__(self, request: InferenceRequest, response_id: str) -> None:
        self._response_id = response_id
        self._model = request.model
        self._include_usage = request.include_usage
        self._choices = request.choices
        self._prompt_tokens_estimated = request.prompt_tokens_estimated
        self._tokens_per_event = request.tokens_per_event
        self._tokens_max = request.output_tokens_max * request.choices
        self._bytes_per_token = bytes_per_token(request)
        self._text_bytes = 0
        self._several = False
        self._splitter = FrameSplitter()
        self._opened = False
        self._left = False
        self._pass_through = False
        self._passing = False
        """Between two events of a stream that passes: a usual one needs no look."""
        self._usual_start = b""
        self._finished = 0
        self._created = 0
        self.done = False
        self.events = 0
        self.usage: Usage | None = None

    def pass_through(self, data: bytes) -> bytes | None:
        """What the client gets for these bytes if they are whole events of the usual kind.

        None: not taken, `feed` has to look into them.
        """
        if not self._passing:
            return None
        if (
            data.startswith(self._usual_start)
            and data.endswith(_USUAL_END)
            and data.find(END) == len(data) - len(END)
            and _TOOLS not in data
        ):
            self.events += 1
            return data[: -len(_OBJECT_END)] + _USAGE_NULL if self._include_usage else data
        return self._undecoded(data) if data.endswith(END) and b"\r" not in data else None

    def pass_chunk(self, chunk: bytes) -> bytes | None:
        """The same for one whole chunk of the worker's body, with its frame: the client's has one.

        None: not taken; it is more or less than one usual event in one chunk.
        """
        size = len(chunk)
        if not self._passing or size >= _USUAL_CHUNK_BYTES_MAX:
            return None
        head = _CHUNK_HEADS[size]
        if not (
            chunk.startswith(head)
            and chunk.startswith(self._usual_start, len(head))
            and chunk.endswith(_USUAL_CHUNK_END)
            and chunk.find(END) == size - len(END) - len(_LINE_END)
            and _TOOLS not in chunk
        ):
            return None
        self.events += 1
        if not self._include_usage:
            return chunk
        event = chunk[len(head) : -len(_LINE_END) - len(_OBJECT_END)]
        return b"%x\r\n%b%b\r\n" % (len(event) + len(_USAGE_NULL), event, _USAGE_NULL)

    def _undecoded(self, block: bytes) -> bytes | None:
        """The same for several events, or for one of a rarer form."""
        if (
            _FINISH in block
            or _USAGE in block
            or _ERROR in block
            or _DONE in block
            or _TOOLS in block
        ):
            return None
        count = block.count(END)
        if not block.count(_COMPACT) == count == block.count(_OBJECT_END):  # not only events
            return None
        if not self._include_usage:
            self.events += count
            return block
        if _ANY_USAGE in block:
            return None
        self.events += count
        return block.replace(_OBJECT_END, _USAGE_NULL)

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes; may be empty.

        Raises:
            InferdError: an error inside the stream, or bytes that are no event stream of ours.
        """
        self._passing = False
        block = self._splitter.feed(data)
        if self.done:
            return b""
        out = self._undecoded(block) if self._pass_through else None
        if out is None:
            out = self._frames(frames_of(block))
        self._passing = self._pass_through and not self._splitter.tail and not self.done
        return out

    def client_left(self) -> None:
        """Nobody reads any more and the engine was told to abort: only the usage matters now."""
        self._left = True

    def end(self) -> bytes:
        """The worker's body has ended: what is still owed to the client.

        Raises:
            WorkerUnreachable: the answer was not complete.
        """
        if self.done:
            return b""
        if self._finished < self._choices:
            raise WorkerUnreachable("The worker ended its stream before the answer was complete.")
        return self._close()

    def bill(self) -> Usage:
        """The engine's own usage, or what was relayed, marked as estimated.

        An attempt that failed before its first event costs nothing.
        """
        told = self.usage
        if told is None and not self._opened:
            return Usage(estimated=self._left)
        if told is not None and (
            not self.events or (told.prompt_tokens and told.completion_tokens)
        ):
            return told
        told = told or Usage()
        # Never less than the client got: each event may hold so many, the last one fewer.
        relayed = self.events * self._tokens_per_event
        if self._several:
            relayed = max(relayed, tokens_of(self._text_bytes, self._bytes_per_token))
        relayed = min(relayed, max(self._tokens_max, self.events))
        return Usage(
            prompt_tokens=told.prompt_tokens or self._prompt_tokens_estimated,
            cached_tokens=told.cached_tokens,
            completion_tokens=max(relayed, told.completion_tokens),
            reasoning_tokens=told.reasoning_tokens,
            estimated=True,
        )

    def error_event(self, error: dict[str, Any]) -> bytes:
        """The last event of a stream that failed: no `[DONE]` follows it.

        The usage so far stands in the error: a client's parser raises it and keeps all of it.
        """
        return encode({"error": {**error, "usage": usage_body(self.bill())}})

    def _frames(self, frames: list[bytes]) -> bytes:
        out = []
        for number, frame in enumerate(frames, start=1):
            try:
                out.append(self._frame(frame))
            except InferdError:
                self._read_usage(frames[number:])
                raise
        return b"".join(out)

    def _read_usage(self, frames: list[bytes]) -> None:
        """What the engine says of the cost, behind the error that it ends with."""
        for frame in frames:
            if _USAGE in frame:
                with suppress(InvalidAnswer):
                    self._keep_usage(decode(payload_of(frame)))

    def _keep_usage(self, event: dict[str, Any]) -> None:
        counts = event.get("usage")
        if isinstance(counts, dict):
            self.usage = usage_of(counts)

    def _frame(self, frame: bytes) -> bytes:
        payload = payload_of(frame)
        if not payload or self.done:
            return b""
        if payload == _DONE:
            if self._finished < self._choices:
                raise WorkerUnreachable(
                    "The worker ended its stream before the answer was complete."
                )
            return self._close()
        event = decode(payload)
        if event.get("error") is not None:
            raise from_event(event["error"])
        self._keep_usage(event)
        choices = self._choices_of(event)
        return self._rewrite(event, choices, compact=_COMPACT in frame) if choices else b""

    def _rewrite(
        self, event: dict[str, Any], choices: list[dict[str, Any]], *, compact: bool
    ) -> bytes:
        """What the client gets of one decoded event."""
        ours = event.get("id") == self._response_id and event.get("model") == self._model
        event["id"] = self._response_id
        event["model"] = self._model
        event.pop("usage", None)
        if self._include_usage:
            event["usage"] = None
        opening = b""
        if not self._opened:
            self._opened = True
            self._created = event.get("created") or 0
            self._pass_through = compact and ours and self._may_pass_through()
            self._usual_start = _start_of(event)
            opening = self._open(event)
        event["choices"] = [choice for choice in choices if self._normalise(choice)]
        if any(choice.get("finish_reason") is not None for choice in event["choices"]):
            event |= self._of_all()
        return opening + encode(event) if event["choices"] else opening

    def _choices_of(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """The event's choices, each in the endpoint's form, or none.

        Raises:
            InvalidAnswer: they are of another form.
        """
        return choices_of(event, "delta", self._choices)

    def _may_pass_through(self) -> bool:
        """Later frames may reach the client as the worker wrote them."""
        return False

    @abstractmethod
    def _open(self, event: dict[str, Any]) -> bytes:
        """What comes before the first event; the event is shaped as the client gets it."""

    @abstractmethod
    def _normalise(self, choice: dict[str, Any]) -> bool:
        """Normalise one choice in place; False if nothing is left that the client must get.

        It counts `events` and, with `_finish`, the choices that have ended.
        """

    def _told(self, texts: Iterable[str]) -> None:
        """One event with these texts of the engine's.

        Two words are two tokens at least: a worker that tells them at once is measured by its text
        where it tells no usage.
        """
        self.events += 1
        for text in texts:
            self._text_bytes += len(text.encode("utf-8", "replace"))
            long = len(text) > TOKEN_CHARS_MAX and not text.isascii()
            self._several = self._several or long or len(text.split(maxsplit=1)) > 1

    def _finish(self, choice: dict[str, Any], *, named: bool = False) -> None:
        """Raises: WorkerFailedMidStream, for an answer that the engine gave up."""
        self._finished += 1
        if not self._left:
            choice["finish_reason"] = finish_reason_of(choice["finish_reason"], named=named)

    def _close(self) -> bytes:
        self.done = True
        if not self._include_usage:
            return DONE
        chunk = {
            "id": self._response_id,
            "object": self.object_name,
            "created": self._created,
            "model": self._model,
            "choices": [],
            "usage": usage_body(self.bill()),
            **self._of_all(),
        }
        return encode(chunk) + DONE

    def _of_all(self) -> dict[str, Any]:
        """What the whole answer says beside its choices, for the chunks that are written here."""
        return {"system_fingerprint": None}


def _start_of(event: dict[str, Any]) -> bytes:
    """How the engine begins the events of this answer, up to what is new in each.

    An event of another beginning is only looked at more closely.
    """
    head = {key: event.get(key) for key in ("id", "object", "created", "model")}
    return b"data: " + orjson.dumps(head)[:-1] + b',"choices":[{"index":0,"delta":{'
