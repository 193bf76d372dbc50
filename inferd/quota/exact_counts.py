"""Exact prompt counts, where an estimate would decide: one tokenizer per pool, checked first.

Owns the tokenizers. One is used only after it has counted a worker's check prompts as the engine
does, and no longer once a bill differs from it. Counting runs off the loop, a few at a time; who
comes beyond that keeps the estimate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from inferd.inference import InferenceRequest
from inferd.quota.model_tokenizer import ModelTokenizer, UnsupportedTokenizerError, plain_chat

LOW: Final = 0.6
HIGH: Final = 1.6
"""How far an estimate may be off, as a factor: other languages than those learnt from."""
PENDING_MAX: Final = 8
"""Counts at a time, so that they never take all threads."""
POOLS_MAX: Final = 1_024

Messages = Sequence[Mapping[str, str]]

log = logging.getLogger(__name__)

CHECKS: Final[tuple[Messages, ...]] = (
    ({"role": "user", "content": "What is the capital of France? Answer in one sentence."},),
    (
        {"role": "system", "content": "You answer in JSON.\n\n  Keys: name, age.  "},
        {
            "role": "user",
            "content": "Größe, naïve, 東京は何ですか? Привет! 1234567890 3.14159 \t x",
        },
        {"role": "assistant", "content": "I can't; it's they'LL   do\r\n\r\nthat."},
        {"role": "user", "content": "def f(x):\n    return [y**2 for y in x]  # 😀👍🏽\n\n\n"},
    ),
    ({"role": "user", "content": " leading and trailing spaces \n"},),
)
"""Prompts on which a tokenizer must agree with the engine: languages, code, spaces, digits."""


class ExactCounts:
    """Which pools are counted, and the counting."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, ModelTokenizer] = {}
        self._pending = 0

    def knows(self, pool: str) -> bool:
        return pool in self._tokenizers

    async def count(self, request: InferenceRequest) -> int | None:
        """Tokens of a request's prompt; None: not of this one, or not now."""
        tokenizer = self._tokenizers.get(request.pool)
        messages = plain_chat(request.body)
        if tokenizer is None or messages is None or self._pending >= PENDING_MAX:
            return None
        self._pending += 1
        try:
            return await asyncio.to_thread(tokenizer.count_chat, messages)
        finally:
            self._pending -= 1

    async def check(
        self, pool: str, folder: Path, engine_count: Callable[[Messages], Awaitable[int]]
    ) -> str | None:
        """Use the tokenizer in `folder` for `pool` if it counts as the engine does.

        Returns why it is not used; raises what `engine_count` raises.
        """
        self._tokenizers.pop(pool, None)
        try:
            tokenizer = await asyncio.to_thread(ModelTokenizer.of_folder, folder)
        except UnsupportedTokenizerError as error:
            return str(error)
        for messages in CHECKS:
            ours = await asyncio.to_thread(tokenizer.count_chat, messages)
            theirs = await engine_count(messages)
            if ours != theirs:
                return f"it makes {ours} tokens of a prompt of which the engine makes {theirs}"
        if len(self._tokenizers) >= POOLS_MAX:
            del self._tokenizers[next(iter(self._tokenizers))]
        self._tokenizers[pool] = tokenizer
        return None

    def billed(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """What the engine counted of a request that was counted here: they must agree."""
        if prompt_tokens != request.prompt_tokens_estimated and request.pool in self._tokenizers:
            del self._tokenizers[request.pool]
            log.warning(
                "prompts of %s are estimated from now on: its tokenizer made %d tokens of one of"
                " which the engine made %d",
                request.pool,
                request.prompt_tokens_estimated,
                prompt_tokens,
            )
