"""A batch's input: lines of JSON, checked whole before any of them runs. Pure but for reading.

The same code serves the API, in a process of its own, and `inferd batch check`. What is checked is
the envelope; a body is checked when its line is served, and its error is that line's alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

LINES_MAX: Final = 50_000
EMBEDDING_INPUTS_MAX: Final = 50_000
CUSTOM_ID_CHARS_MAX: Final = 512
ERRORS_MAX: Final = 100
TOKEN_BYTES: Final = 4
"""Bytes of text of one token, for estimates."""
ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)
_PROMPT: Final = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
}
_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n"
_PACKED: Final = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "compressed with gzip"}
_REQUIRED: Final = ("custom_id", "method", "url", "body")
_LIMIT_KEYS: Final = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What is allowed. `models`: every name that may stand in a line, with its kind; None: any."""

    endpoint: str
    models: Mapping[str, str] | None
    line_bytes_max: int
    lines_max: int = LINES_MAX


@dataclass(frozen=True, slots=True)
class LineError:
    """One reason why a file is refused. `line` counts from 1; None: the file as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "line": self.line,
        }


@dataclass(slots=True)
class Checked:
    """What a file holds, or why it is refused. `entries`: number, offset and length of lines."""

    total: int = 0
    model: str | None = None
    prompt_tokens: int = 0
    """Estimated by bytes."""
    output_tokens: int = 0
    """Asked for at most, of the lines that name a limit."""
    unlimited: int = 0
    """Lines that name none."""
    errors: list[LineError] = field(default_factory=list)
    errors_total: int = 0
    entries: array[int] = field(default_factory=lambda: array("Q"))

    def refuse(self, error: LineError) -> None:
        self.errors_total += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)


def check_file(path: Path, rules: Rules) -> Checked:
    """Check every line. Raises OSError if the file cannot be read."""
    checked = Checked()
    check = _Check(rules, checked)
    with path.open("rb") as file:
        begins = file.read(4)
        for mark, what in _PACKED.items():
            if begins.startswith(mark):
                message = f"The file is {what}: send the lines of JSON themselves."
                checked.refuse(_invalid_json(1, message))
                return checked
        file.seek(0)
        for number, offset, raw in _lines(file, rules.line_bytes_max):
            if checked.total >= rules.lines_max:
                checked.errors = []
                checked.refuse(_too_many(rules.lines_max))
                return checked
            check.line(number, offset, raw)
    if not checked.total:
        checked.refuse(LineError("empty_file", "The input file holds no requests."))
    return checked


def _lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, int, bytes | int]]:
    """Number, offset and bytes of each line that is not blank; its length alone if it is too long.

    A line that is too long is never held whole.
    """
    offset = number = 0
    while raw := file.readline(bytes_max + 3):
        number += 1
        length = len(raw)
        text = raw
        if number == 1 and raw.startswith(_BOM):
            text = raw[len(_BOM) :]
        start = offset + length - len(text)
        offset += length
        if not raw.endswith(b"\n") and length == bytes_max + 3:
            while raw := file.readline(1_048_576):
                length += len(raw)
                offset += len(raw)
                if raw.endswith(b"\n"):
                    break
            yield number, start, length
            continue
        text = text.rstrip(b"\r\n")
        if text.strip(_BLANK):
            yield number, start, text if len(text) <= bytes_max else len(text)


class _Check:
    """The state of one file's check: which ids and which model were seen."""

    def __init__(self, rules: Rules, checked: Checked) -> None:
        self._rules = rules
        self._checked = checked
        self._ids: dict[str, int] = {}
        self._inputs = 0

    def line(self, number: int, offset: int, raw: bytes | int) -> None:
        checked = self._checked
        checked.total += 1
        if isinstance(raw, int):
            checked.refuse(
                LineError(
                    "request_too_large",
                    f"This line has {raw:,} bytes. A line may have {self._rules.line_bytes_max:,}.",
                    line=number,
                )
            )
            return
        try:
            request = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            checked.refuse(_invalid_json(number, f"This line is not parseable as JSON: {error}."))
            return
        if not isinstance(request, dict):
            checked.refuse(_invalid_json(number, "This line is JSON, but not an object."))
            return
        wrong = self._envelope(request, number) or self._body(request["body"], number)
        if wrong is not None:
            checked.refuse(wrong)
            return
        checked.entries.extend((number, offset, len(raw)))
        checked.prompt_tokens += len(raw) // TOKEN_BYTES
        self._count_output(request["body"])

    def _envelope(self, request: dict[str, Any], number: int) -> LineError | None:
        for name in _REQUIRED:
            if request.get(name) is None:
                message = f"Missing required parameter: '{name}'."
                return LineError("missing_required_parameter", message, name, number)
        custom_id = request["custom_id"]
        if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= CUSTOM_ID_CHARS_MAX:
            return LineError(
                "invalid_value",
                f"Invalid 'custom_id': expected a string of 1 to {CUSTOM_ID_CHARS_MAX} characters.",
                "custom_id",
                number,
            )
        if (first := self._ids.setdefault(custom_id, number)) != number:
            return LineError(
                "duplicate_custom_id",
                f"The custom_id '{custom_id[:64]}' is that of line {first} already. It must be"
                " unique in its file.",
                "custom_id",
                number,
            )
        if request["method"] != "POST":
            return LineError(
                "invalid_method", "Invalid 'method': only POST is supported.", "method", number
            )
        if request["url"] != self._rules.endpoint:
            return LineError(
                "invalid_url",
                f"The URL '{str(request['url'])[:64]}' is not the batch's endpoint"
                f" '{self._rules.endpoint}'.",
                "url",
                number,
            )
        return None

    def _body(self, body: object, number: int) -> LineError | None:
        if not isinstance(body, dict):
            return LineError("invalid_value", "Invalid 'body': not an object.", "body", number)
        if body.get("stream"):
            return LineError(
                "streaming_unsupported",
                "Streaming is not supported in a batch: leave out 'stream'.",
                "body.stream",
                number,
            )
        if error := self._model(body.get("model"), number):
            return error
        prompt = _PROMPT[self._rules.endpoint]
        if body.get(prompt) is None:
            message = f"Missing required parameter: '{prompt}'."
            return LineError("invalid_request", message, f"body.{prompt}", number)
        if self._rules.endpoint == "/v1/embeddings":
            return self._embedding_inputs(body["input"], number)
        return None

    def _model(self, model: object, number: int) -> LineError | None:
        if not isinstance(model, str) or not model:
            message = "Missing required parameter: 'model'."
            return LineError("invalid_request", message, "body.model", number)
        models, first = self._rules.models, self._checked.model
        wrong = None if models is None else models.get(model, "")
        if wrong == "":
            message = f"The model '{model[:64]}' does not exist or your team may not use it."
            return LineError("model_not_found", message, "body.model", number)
        embeds = self._rules.endpoint == "/v1/embeddings"
        if wrong is not None and (wrong == "embedding") != embeds:
            message = f"The model '{model[:64]}' is not served at {self._rules.endpoint}."
            return LineError("model_not_found", message, "body.model", number)
        if first is not None and model != first:
            message = f"A batch is for one model: the first line has '{first[:64]}'."
            return LineError("mismatched_model", message, "body.model", number)
        self._checked.model = model
        return None

    def _embedding_inputs(self, value: object, number: int) -> LineError | None:
        several = isinstance(value, list) and value and not isinstance(value[0], int)
        self._inputs += len(value) if several and isinstance(value, list) else 1
        if self._inputs > EMBEDDING_INPUTS_MAX:
            message = f"A batch may embed {EMBEDDING_INPUTS_MAX:,} inputs in all."
            return LineError("too_many_tasks", message, "body.input", number)
        return None

    def _count_output(self, body: dict[str, Any]) -> None:
        for name in _LIMIT_KEYS.get(self._rules.endpoint, ()):
            limit = body.get(name)
            if isinstance(limit, int) and limit > 0:
                self._checked.output_tokens += limit
                return
        self._checked.unlimited += 1


def _invalid_json(number: int, message: str) -> LineError:
    return LineError("invalid_json_line", message, line=number)


def _too_many(lines_max: int) -> LineError:
    return LineError(
        "too_many_tasks", f"A batch may have {lines_max:,} requests: split the file into several."
    )
