"""What a worker's refusal means, in our words: its bodies hold paths, internals and odd codes.

Pure. SGLang answers errors flat, with the status as `code`, and inside a stream under `error`;
other servers use OpenAI's form. Known texts become errors that name the parameter; of unknown ones
nothing is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import orjson

from inferd.errors import (
    ContextLengthExceeded,
    InferdError,
    InvalidField,
    Preempted,
    RequestError,
    UnsupportedFeature,
    UpstreamError,
    WorkerFull,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnreachable,
)

DETAIL_CHARS_MAX: Final = 200
FULL_RETRY_AFTER_S: Final = 1.0
"""An engine's queue moves with every answer it finishes; how far, only its own report tells."""

Match = re.Match[str]


def from_body(status: int, body: bytes) -> InferdError:
    """The error of a whole answer with a status other than 200."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict) and "error" in value:
        value = value["error"]
    return _translate(status, _message(value))


def from_event(error: object) -> InferdError:
    """The error that came inside a stream, under `error`; its status is in `code`."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and _STATUS.fullmatch(code):
        code = int(code)
    return _translate(code if isinstance(code, int) else _SERVER_ERROR, _message(error))


def _message(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("message")
    return value if isinstance(value, str) else ""


def _translate(status: int, message: str) -> InferdError:
    if status in _REFUSALS:
        for pattern, error in _RULES:
            if match := pattern.search(message):
                return error(match)
        return WorkerRejected(
            "The engine refused this request without a reason that can be shown. "
            "Check the values of its parameters."
        )
    if status == _UNAVAILABLE and _EVICTED.search(message):
        return Preempted("The worker put a request of higher priority in its place.")
    if status == _TOO_MANY or (status == _UNAVAILABLE and _FULL.search(message)):
        return WorkerFull("The worker's queue is full.", retry_after_s=FULL_RETRY_AFTER_S)
    if status in _TIMEOUTS:
        return WorkerTimeout("The worker gave up on this request: it took too long.")
    if status in _MISCONFIGURED:
        return WorkerUnreachable(
            f"{_MISCONFIGURED[status]} Whoever runs the gateway must check it."
        )
    if status >= _SERVER_ERROR:
        return WorkerUnreachable(f"The worker failed with HTTP status {status}.")
    return UpstreamError(f"The worker answered with an unexpected HTTP status, {status}.")


_REFUSALS: Final = frozenset({400, 413, 422})
_MISCONFIGURED: Final = {
    401: "A worker refused the gateway's own key.",
    403: "A worker refused the gateway's own key.",
    404: "A worker does not serve this model or endpoint.",
    405: "A worker does not serve this model or endpoint.",
}
_TIMEOUTS: Final = frozenset({408, 504})
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_SERVER_ERROR: Final = 500
_STATUS: Final = re.compile(r"[1-5][0-9]{2}")
_FULL: Final = re.compile(r"queue is full|overloaded", re.IGNORECASE)
_EVICTED: Final = re.compile(r"higher priority request", re.IGNORECASE)


def _prompt_too_long(match: Match) -> InferdError:
    return ContextLengthExceeded(
        f"This model's maximum context length is {match[2]} tokens. However, your messages "
        f"resulted in {match[1]} tokens. Please reduce the length of the messages.",
        param="messages",
    )


def _total_too_long(match: Match) -> InferdError:
    return ContextLengthExceeded(
        f"This model's maximum context length is {match[1]} tokens. However, you requested "
        f"{match[2]} tokens ({match[3]} in the messages, {match[4]} in the completion). "
        "Please reduce the length of the messages or completion.",
        param="messages",
        room_tokens=int(match[1]) - int(match[3]),
    )


def _context(match: Match) -> InferdError:
    limit = f" is {match[1]} tokens" if match.lastindex else " would be exceeded"
    return ContextLengthExceeded(
        f"This model's maximum context length{limit}. Please reduce the length of the messages or "
        "completion.",
        param="messages",
    )


def _output_too_long(match: Match) -> InferdError:
    return InvalidField(
        "Invalid 'max_completion_tokens': integer above maximum value. Expected a value <= "
        f"{match[2]}, but got {match[1]} instead.",
        code="integer_above_max_value",
        param="max_completion_tokens",
    )


def _grammar(match: Match) -> InferdError:
    param, code = _GRAMMARS.get(match[1], _GRAMMARS["json"])
    detail = _shown(match[2])
    return InvalidField(
        f"Invalid '{param}': the engine cannot enforce it"
        f"{f': {detail}' if detail else ''}. Leave out what it does not support.",
        code=code,
        param=param,
    )


def _grammar_timeout(match: Match) -> InferdError:
    param, code = _GRAMMARS.get(match[1], _GRAMMARS["json"])
    return InvalidField(
        f"Invalid '{param}': it takes the engine too long to compile. Send a simpler one.",
        code=code,
        param=param,
    )


def _no_grammar(_match: Match) -> InferdError:
    return UnsupportedFeature(
        "Unsupported parameter: 'response_format' is not supported: this model's workers run "
        "without a grammar backend.",
        param="response_format",
    )


def _tool_schema(match: Match) -> InferdError:
    param = f"tools[{match[1]}].function.parameters"
    return InvalidField(
        f"Invalid '{param}': not a valid JSON schema.",
        code="invalid_function_parameters",
        param=param,
    )


def _logit_bias(match: Match) -> InferdError:
    return InvalidField(
        f"Invalid 'logit_bias': key '{match[2]}' is not a token of this model. "
        f"Expected ids from 0 to {match[1]}.",
        param="logit_bias",
    )


def _template(_match: Match) -> InferdError:
    return RequestError(
        "Invalid 'messages': this model's chat template does not take these roles in this order. "
        "Put one system message first, then let user and assistant alternate.",
        param="messages",
    )


_GRAMMARS: Final = {
    "json": ("response_format", "invalid_json_schema"),
    "structural_tag": ("tools", "invalid_function_parameters"),
    "regex": ("regex", "invalid_value"),
    "ebnf": ("ebnf", "invalid_value"),
}
_RULES: Final[tuple[tuple[re.Pattern[str], Callable[[Match], InferdError]], ...]] = (
    (
        re.compile(
            r"The input \((\d+) tokens\) is longer than the model's context length \((\d+) tokens\)"
        ),
        _prompt_too_long,
    ),
    (
        re.compile(
            r"Input length \((\d+) tokens\) exceeds the maximum allowed length \((\d+) tokens\)"
        ),
        _prompt_too_long,
    ),
    (
        re.compile(
            r"maximum context length of (\d+) tokens\. You requested a total of (\d+) tokens: "
            r"(\d+) tokens from the input messages and (\d+) tokens for the completion"
        ),
        _total_too_long,
    ),
    (
        re.compile(
            r"max(?:_completion)?_tokens is too large: (\d+)\.\s*This model supports at most (\d+)"
        ),
        _output_too_long,
    ),
    (re.compile(r"Failed to compile (\w+) grammar: (.*)", re.DOTALL), _grammar),
    (re.compile(r"Grammar preprocessing timed out: req\.grammar_key=\('(\w+)'"), _grammar_timeout),
    (re.compile(r"Grammar-based generation .* is not supported"), _no_grammar),
    (re.compile(r"Tool (\d+) function (?:has invalid )?'parameters' schema"), _tool_schema),
    (re.compile(r"logit_bias must has keys in \[0, (\d+)\], got (-?\d+)"), _logit_bias),
    (re.compile(r"maximum context length (?:is|of) (\d+) tokens"), _context),
    (re.compile(r"KV memory budget|exceeds? the available context"), _context),
    (
        re.compile(
            r"roles? must alternate|must be at the beginning|system (?:role|message)|user query",
            re.IGNORECASE,
        ),
        _template,
    ),
)

# The compiler's own place in its source comes before what it says of the schema.
_SOURCE_PLACE: Final = re.compile(r"^.*\.(?:cc|cpp|h|py):\d+:\s*", re.DOTALL)
_INTERNAL: Final = re.compile(r"(?:^|[\s\"'(\[=])/[\w.-]+/|\.(?:py|cc|cpp|h)\b|Traceback|File \"")


def _shown(detail: str) -> str:
    """The compiler's complaint about the client's own schema, if it holds nothing else."""
    first_line = _SOURCE_PLACE.sub("", detail).strip().split("\n", 1)[0]
    if _INTERNAL.search(first_line):
        return ""
    return first_line[:DETAIL_CHARS_MAX].rstrip(".")
