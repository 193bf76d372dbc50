"""What a worker's embeddings become for a client: in the order of the inputs, in the asked form."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import TYPE_CHECKING, Any

from inferd.errors import InvalidAnswer
from inferd.upstream.answer import usage_or_estimate

if TYPE_CHECKING:
    from inferd.inference import InferenceRequest, Usage


def embedding_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """The list of embeddings and its usage.

    Raises:
        InvalidAnswer: not one embedding for each input, or not in a form that can be read.
    """
    del response_id  # the public API gives embeddings no id
    data = engine.get("data")
    if not isinstance(data, list) or len(data) != request.choices:
        raise InvalidAnswer("The worker's answer does not hold one embedding for each input.")
    usage = usage_or_estimate(engine, request, [])
    packed = request.body["encoding_format"] == "base64"
    convert = _packed if packed else _unpacked
    try:
        rows = [
            {"object": "embedding", "index": index, "embedding": convert(row["embedding"])}
            for index, row in enumerate(data)
        ]
    except (KeyError, TypeError, ValueError, struct.error, binascii.Error) as error:
        raise InvalidAnswer("The worker sent an embedding that cannot be read.") from error
    body = {
        "object": "list",
        "data": rows,
        "model": request.model,
        "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
    }
    return body, usage


def _packed(embedding: list[float] | str) -> str:
    """Little-endian float32 in base64, as the SDKs decode it."""
    if isinstance(embedding, str):
        return embedding
    return base64.b64encode(struct.pack(f"<{len(embedding)}f", *embedding)).decode("ascii")


def _unpacked(embedding: list[float] | str) -> list[float]:
    if isinstance(embedding, list):
        return embedding
    data = base64.b64decode(embedding, validate=True)
    return list(struct.unpack(f"<{len(data) // 4}f", data))
