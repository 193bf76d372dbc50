"""Token ids that a client sends, held against the model's vocabulary. Pure.

An engine dies of an id that is no token: as a part of a prompt, and as a stop token while
`min_tokens` holds stop tokens back. It checks only `logit_bias` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferd.errors import InvalidField, UnsupportedFeature
from inferd.inference import ModelLimits


def check_vocabulary(largest_id: int, limits: ModelLimits, path: str) -> None:
    """Refuse ids that are no tokens of the model: its engine would die of them.

    Raises:
        UnsupportedFeature: the vocabulary is not known. InvalidField: an id beyond it.
    """
    if largest_id < 0:
        return
    size = limits.vocabulary_tokens
    if size is None:
        raise UnsupportedFeature(
            f"Unsupported value: '{path}' does not support token ids here: the vocabulary of this "
            "model is not configured. Send text.",
            code="unsupported_value",
            param=path,
        )
    if largest_id >= size:
        raise InvalidField(
            f"Invalid '{path}': {largest_id} is not a token of this model. Expected ids from 0 to "
            f"{size - 1}.",
            param=path,
        )


def check_stop_tokens(body: Mapping[str, Any], limits: ModelLimits) -> None:
    """The same for `stop_token_ids`; with an unknown vocabulary they go alone.

    Raises:
        UnsupportedFeature, InvalidField: as for a prompt.
    """
    stops = body.get("stop_token_ids")
    if stops and (limits.vocabulary_tokens is not None or body.get("min_tokens")):
        check_vocabulary(max(stops), limits, "stop_token_ids")
