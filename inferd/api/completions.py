"""A plain completion's body bytes -> `ParsedRequest`; the tables of its parameters. Pure."""

from __future__ import annotations

from typing import Any, Final

from inferd.api.fields import Rule, boolean, combination, integer, missing
from inferd.api.parsed import (
    LimitsOf,
    ParsedRequest,
    Tables,
    check_fits,
    choices_of,
    follow_model,
    read_envelope,
    streaming,
    who_asks,
)
from inferd.api.prompts import Prompts, check_prompts, schema
from inferd.api.sampling import (
    ENGINE_SAMPLING,
    SAMPLING,
    WHO_ASKS,
    raw_count,
    stream_options,
    unsupported_value,
)
from inferd.api.vocabulary import check_stop_tokens, check_vocabulary
from inferd.errors import ContextLengthExceeded, InvalidField
from inferd.inference import Priority

PROMPTS_MAX: Final = 64
PROMPT_TOKENS_MAX: Final = 1_048_576
SEQUENCES_MAX: Final = 64
"""Prompts times `n`: they run together on one worker."""
LOGPROBS_MAX: Final = 5
OUTPUT_TOKENS_DEFAULT: Final = 16
END_OF_TEXT: Final = "<|endoftext|>"
"""What the public API takes for a `prompt` of null: the start of a new text."""


def _best_of(value: object, path: str) -> None:
    if integer(0, 20)(value, path) > 1:
        raise unsupported_value(path, str(value), "One sequence is made for each choice: send 1.")


HONOURED: Final[dict[str, Rule[object]]] = {
    **SAMPLING,
    "logprobs": integer(0, LOGPROBS_MAX),
    "echo": boolean,
    **ENGINE_SAMPLING,
}
GATEWAY: Final[dict[str, Rule[object]]] = {
    "prompt": Rule(
        lambda value, path: check_prompts(value, path, PROMPTS_MAX, PROMPT_TOKENS_MAX),
        schema(PROMPTS_MAX, PROMPT_TOKENS_MAX),
    ),
    "stream": boolean,
    "stream_options": stream_options,
    "max_tokens": raw_count,
    "n": raw_count,
    **WHO_ASKS,
}
ACCEPTED: Final[dict[str, Rule[object]]] = {
    "best_of": Rule(_best_of, {"type": "integer", "minimum": 0, "maximum": 1})
}
REFUSED: Final[dict[str, str]] = {
    "suffix": "Models here write on from the end of a prompt only.",
    "response_format": "Use 'regex' or 'ebnf', or a chat completion.",
}
TABLES: Final = Tables(HONOURED, GATEWAY, ACCEPTED, REFUSED)


def parse_completion(raw: bytes, resolve: LimitsOf, priority_max: Priority) -> ParsedRequest:
    """Parse and validate a body; see `parse_chat`.

    Raises:
        RequestError: naming the parameter and what is allowed.
    """
    envelope, model, limits = read_envelope(raw, resolve)
    if "prompt" not in envelope:
        raise missing("prompt")
    if envelope["prompt"] is None:
        envelope["prompt"] = END_OF_TEXT
    body, ours = TABLES.check(envelope)
    follow_model(body, limits)
    prompts: Prompts = ours["prompt"]
    body["prompt"] = prompts.value
    streams = streaming(ours)
    asked = ours.get("max_tokens", min(OUTPUT_TOKENS_DEFAULT, limits.output_tokens_max))
    output_tokens_max = integer(1, limits.output_tokens_max)(asked, "max_tokens")
    if body.get("min_tokens", 0) > output_tokens_max:
        raise combination("'min_tokens' is more than 'max_tokens'.", "min_tokens")
    if "regex" in body and "ebnf" in body:
        raise combination(
            "'regex' and 'ebnf' cannot be used together: a text can follow one grammar.", "ebnf"
        )
    check_fits(prompts.text_bytes, limits, "prompt", "prompts", prompts.count)
    check_vocabulary(prompts.largest_id, limits, "prompt")
    check_stop_tokens(body, limits)
    _check_ids(prompts, limits.context_tokens_max)
    n = choices_of(ours, limits)
    if n * prompts.count > SEQUENCES_MAX:
        raise InvalidField(
            f"Invalid 'n': {prompts.count} prompts with {n} choices each are "
            f"{n * prompts.count} sequences. Expected at most {SEQUENCES_MAX} in one request.",
            param="n",
        )
    if n > 1:
        body["n"] = n
    elif prompts.count > 1:
        body["n"] = 1
    _join_echo(body)
    return ParsedRequest(
        model=model,
        limits=limits,
        body=body,
        prompt_bytes=prompts.text_bytes,
        prompt_tokens=prompts.token_ids,
        prompts=prompts.count,
        choices=n * prompts.count,
        output_tokens_max=output_tokens_max,
        **streams,
        **who_asks(ours, priority_max),
    )


def _check_ids(prompts: Prompts, context_tokens_max: int) -> None:
    if prompts.token_ids > context_tokens_max * prompts.count:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_tokens_max} tokens. Your prompt has "
            f"{prompts.token_ids}. Please reduce its length.",
            param="prompt",
        )


def _join_echo(body: dict[str, Any]) -> None:
    """The engine tells log-probabilities of an echoed prompt only when alternatives are asked."""
    if body.get("echo") and body.get("logprobs") == 0:
        raise combination(
            "'echo' with 'logprobs': 0 is not supported. Send 'logprobs' from 1 to 5, or none.",
            "logprobs",
        )
