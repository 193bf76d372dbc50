"""POST /v1/embeddings: vectors that are the same for the same text, and nothing else about them.

As in the real engine there is neither stream nor id, and a text of white space is refused. What a
generating endpoint does to an embedding engine is done here too: it dies.
"""

from __future__ import annotations

import base64
import os
import random
import struct
from typing import Any
from zlib import crc32

import orjson

from tests.fake_engine.engine import Engine
from tests.fake_engine.shapes import error, usage
from tests.fake_engine.tokens import encode
from tests.fake_engine.wire import Exchange

DIMENSIONS = 64
_NOT_EMBEDDING = (
    "This model does not appear to be an embedding model by default. Please add `--is-embedding` "
    "when launching the server or try another model."
)


def die() -> None:
    """What a chat request does to the real engine when it was started to embed."""
    os._exit(3)


def _ids(value: Any) -> list[list[int]]:
    if isinstance(value, str):
        return [encode(value)]
    if value and isinstance(value[0], int):
        return [list(value)]
    return [encode(one) if isinstance(one, str) else list(one) for one in value]


def _vector(ids: list[int], size: int) -> list[float]:
    rng = random.Random(crc32(repr(ids).encode()))
    values = [rng.uniform(-1, 1) for _ in range(size)]
    norm = sum(value * value for value in values) ** 0.5
    packed = struct.pack(f"<{size}f", *(value / norm for value in values))
    return list(struct.unpack(f"<{size}f", packed))


def _problem(engine: Engine, given: Any, inputs: list[list[int]]) -> str | None:
    if not engine.options.is_embedding:
        return _NOT_EMBEDDING
    texts = given if isinstance(given, list) else [given]
    if not texts or any(isinstance(one, str) and not one.strip() for one in texts):
        return "Input cannot be empty or whitespace only"
    context = engine.options.context_length
    for ids in inputs:
        if len(ids) >= context:
            return (
                f"The input ({len(ids)} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )
    return None


async def embed(engine: Engine, exchange: Exchange) -> None:
    """Answer one request."""
    body = orjson.loads(exchange.body)
    engine.seen.note(exchange.method, exchange.path, exchange.headers, body)
    given = body.get("input")
    inputs = _ids(given)
    if problem := _problem(engine, given, inputs):
        exchange.respond(400, error(400, problem, "BadRequestError"))
        return
    size = body.get("dimensions") or DIMENSIONS
    rows = []
    for index, ids in enumerate(inputs):
        vector: list[float] | str = _vector(ids, size)
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        rows.append({"embedding": vector, "index": index, "object": "embedding"})
    counted = usage(sum(map(len, inputs)), 0, None)
    told = {"data": rows, "model": engine.options.model_path, "object": "list", "usage": counted}
    exchange.respond_json(200, told)
