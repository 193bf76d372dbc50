"""What a prompt is in tokens: `/v1/tokenize`, and `/v1/responses/input_tokens` for a count alone.

Pure. The engine's tokenizer and chat template do it, so the numbers are those that are billed. It
takes a worker's slot for a moment and costs no tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from inferd.api.fields import Rule, boolean, combination, missing
from inferd.api.parameters import GATEWAY as CHAT
from inferd.api.parameters import chat_template_kwargs
from inferd.api.parsed import LimitsOf, ParsedRequest, Tables, check_fits, read_envelope, who_asks
from inferd.api.prompts import Prompts, check_prompts, texts_schema
from inferd.api.responses import parse_response
from inferd.api.tools import Tools, apply
from inferd.errors import InvalidField, UpstreamError
from inferd.inference import ModelKind, Priority, Usage

if TYPE_CHECKING:
    from inferd.inference import InferenceRequest

TEXTS_MAX: Final = 64


def _texts(value: object, path: str) -> Prompts:
    prompts = check_prompts(value, path, TEXTS_MAX, TEXTS_MAX)
    if prompts.token_ids:
        raise InvalidField(f"Invalid '{path}': expected texts, but got token ids.", param=path)
    return prompts


TABLES: Final = Tables(
    honoured={
        "add_special_tokens": boolean,
        "add_generation_prompt": boolean,
        "continue_final_message": boolean,
        "chat_template_kwargs": chat_template_kwargs,
    },
    gateway={
        "prompt": Rule(_texts, texts_schema(TEXTS_MAX)),
        **{name: CHAT[name] for name in ("messages", "tools", "tool_choice", "reasoning_effort")},
    },
    accepted={},
    refused={},
)
_OF_MESSAGES: Final = ("tools", "tool_choice", "reasoning_effort")


def parse_tokenize(raw: bytes, resolve: LimitsOf, priority_max: Priority) -> ParsedRequest:
    """Parse and validate a body; see `parse_chat`.

    Raises:
        RequestError: naming the parameter and what is allowed.
    """
    envelope, model, limits = read_envelope(raw, resolve)
    body, ours = TABLES.check(envelope)
    if ("prompt" in ours) == ("messages" in ours):
        if "prompt" in ours:
            raise combination("'prompt' and 'messages' cannot be used together.", "prompt")
        raise missing("prompt")
    if "messages" in ours:
        size = ours["messages"]
        body["messages"] = envelope["messages"]
        if limits.kind is not ModelKind.CHAT:
            raise InvalidField("Invalid 'messages': this model takes texts only.", param="messages")
        size += apply(ours.get("tools") or Tools(), ours.get("tool_choice"), body)
        if limits.reasoning and "reasoning_effort" in ours:
            body["reasoning_effort"] = ours["reasoning_effort"]
        check_fits(size, limits, "messages", "'messages' and 'tools'")
    else:
        for name in (*_OF_MESSAGES, "continue_final_message", "add_generation_prompt"):
            if name in ours or name in body:
                raise combination(f"'{name}' goes with 'messages' only.", name)
        prompts: Prompts = ours["prompt"]
        body["prompt"] = prompts.value
        check_fits(prompts.text_bytes, limits, "prompt", "texts", prompts.count)
    return ParsedRequest(
        model=model, limits=limits, body=body, prompt_bytes=0, **who_asks({}, priority_max)
    )


def parse_input_tokens(raw: bytes, resolve: LimitsOf, priority_max: Priority) -> ParsedRequest:
    """The body of a response, of which only the prompt counts."""
    parsed = parse_response(raw, resolve, priority_max)
    kept = ("messages", "tools", "tool_choice", "reasoning_effort")
    body = {name: parsed.body[name] for name in kept if name in parsed.body}
    return replace(parsed, body=body, prompt_bytes=0, output_tokens_max=0, stream=False)


def tokens_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """Ids and their number, for one text or for each of several."""
    del response_id
    tokens, count = engine.get("tokens"), engine.get("count")
    if not isinstance(tokens, list) or not isinstance(count, int | list):
        raise UpstreamError("The worker's answer holds no tokens.")
    return {"object": "tokens", "model": request.model, "tokens": tokens, "count": count}, Usage()


def count_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """The number alone, as the SDK's `responses.input_tokens.count` reads it."""
    body, usage = tokens_answer(engine, request, response_id)
    return {"object": "response.input_tokens", "input_tokens": body["count"]}, usage
