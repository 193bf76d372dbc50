"""An embedding's body bytes -> `ParsedRequest`; the tables of its parameters. Pure."""

from __future__ import annotations

from typing import Any, Final

from inferd.api.fields import Rule, integer, missing, one_of
from inferd.api.parsed import LimitsOf, ParsedRequest, Tables, check_fits, read_envelope, who_asks
from inferd.api.prompts import Prompts, check_prompts, not_blank, schema
from inferd.api.sampling import TOKEN_ID_MAX, priority, safety_identifier, unsupported_value, user
from inferd.api.vocabulary import check_vocabulary
from inferd.errors import ContextLengthExceeded, UnsupportedFeature
from inferd.inference import ModelLimits, Priority

INPUTS_MAX: Final = 2_048
TOKENS_MAX: Final = 300_000
"""Of all inputs together. Texts are counted by the engine; ids are counted here."""

HONOURED: Final[dict[str, Rule[object]]] = {"encoding_format": one_of("float", "base64")}
GATEWAY: Final[dict[str, Rule[object]]] = {
    "input": Rule(
        lambda value, path: check_prompts(value, path, INPUTS_MAX, INPUTS_MAX),
        schema(INPUTS_MAX, INPUTS_MAX),
    ),
    "dimensions": integer(1, TOKEN_ID_MAX),
    "priority": priority,
    "user": user,
    "safety_identifier": safety_identifier,
}
TABLES: Final = Tables(HONOURED, GATEWAY, {}, {})


def parse_embedding(raw: bytes, resolve: LimitsOf, priority_max: Priority) -> ParsedRequest:
    """Parse and validate a body; see `parse_chat`.

    Raises:
        RequestError: naming the parameter and what is allowed.
    """
    envelope, model, limits = read_envelope(raw, resolve)
    body, ours = TABLES.check(envelope)
    if "input" not in ours:
        raise missing("input")
    inputs: Prompts = ours["input"]
    not_blank(inputs, "input")
    body["input"] = inputs.value
    body.setdefault("encoding_format", "float")
    check_vocabulary(inputs.largest_id, limits, "input")
    _join_dimensions(body, ours, limits)
    check_fits(inputs.text_bytes, limits, "input", "inputs", inputs.count)
    if inputs.token_ids > min(TOKENS_MAX, limits.context_tokens_max * inputs.count):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limits.context_tokens_max} tokens, and all "
            f"inputs together may have {TOKENS_MAX}. Yours have {inputs.token_ids}. "
            "Please send fewer or shorter ones.",
            param="input",
        )
    return ParsedRequest(
        model=model,
        limits=limits,
        body=body,
        prompt_bytes=inputs.text_bytes,
        prompt_tokens=inputs.token_ids,
        prompts=inputs.count,
        choices=inputs.count,
        **who_asks(ours, priority_max),
    )


def _join_dimensions(body: dict[str, Any], ours: dict[str, Any], limits: ModelLimits) -> None:
    dimensions = ours.get("dimensions")
    if dimensions is None:
        return
    if not limits.dimensions:
        raise UnsupportedFeature(
            "Unsupported parameter: 'dimensions' is not supported with this model, whose "
            "embeddings have one size.",
            param="dimensions",
        )
    if dimensions not in limits.dimensions:
        sizes = ", ".join(str(size) for size in limits.dimensions)
        raise unsupported_value("dimensions", str(dimensions), f"Supported values are: {sizes}.")
    body["dimensions"] = dimensions
