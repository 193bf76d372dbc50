"""One conversation with a model: its history, and how an answer comes to the terminal or pipe."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass, field
from typing import Any

from inferd import clock
from inferd.cli.chat_client import NO_WORKER, ApiError, ChatClient, connected

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a model writes must not drive the terminal."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to ask. Values are None where the server's defaults hold."""

    base_url: str
    key: str = field(repr=False)
    model: str | None
    system: str | None
    max_tokens: int | None
    temperature: float | None


class Conversation:
    """Keeps the messages. An answer that was stopped stays as far as it came."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._terminal = sys.stdout.isatty()
        self._messages: list[dict[str, str]] = []
        self._answer: list[str] = []
        self._model: str | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        system = self._options.system
        self._messages = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> None:
        """Stream the answer to standard output; returns when it is whole.

        Raises:
            ApiError: it could not be had; a question without an answer is forgotten.
            KeyboardInterrupt: Ctrl-C.
        """
        self._messages.append({"role": "user", "content": text})
        self._answer = []
        try:
            asyncio.run(self._ask())
        finally:
            if self._answer:
                self._messages.append({"role": "assistant", "content": "".join(self._answer)})
            else:
                self._messages.pop()

    async def _ask(self) -> None:
        async with connected(self._options.base_url, self._options.key) as client:
            if self._model is None:
                self._model = await client.model_when_ready(self._options.model, self.tell)
            try:
                await self._stream(client, self._model)
            except ApiError as error:
                if error.code != NO_WORKER or self._answer:
                    raise
                await client.model_when_ready(self._model, self.tell)
                await self._stream(client, self._model)

    async def _stream(self, client: ChatClient, model: str) -> None:
        asked = clock.monotonic()
        first: float | None = None
        finish_reason, tokens = None, None
        try:
            async for piece in client.answer(self._request(model)):
                if first is None and (piece.text or piece.reasoning):
                    first = clock.monotonic()
                self._show(piece.reasoning, dim=True)
                self._show(piece.text)
                if piece.text:
                    self._answer.append(piece.text)
                finish_reason = piece.finish_reason or finish_reason
                tokens = piece.completion_tokens or tokens
        finally:
            if first is not None:
                self._write("\n")
        if finish_reason == "length":
            self.tell("cut off: the answer has as many tokens as it may (--max-tokens)")
        if self._terminal and first is not None and tokens:
            self.tell(_pace(tokens, first - asked, clock.monotonic() - first))

    def _request(self, model: str) -> dict[str, Any]:
        request = {
            "model": model,
            "messages": self._messages,
            "max_completion_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
        }
        return {name: value for name, value in request.items() if value is not None}

    def _show(self, text: str, *, dim: bool = False) -> None:
        """Reasoning is for people only: a pipe gets the answer alone, byte for byte."""
        if not text or (dim and not self._terminal):
            return
        if self._terminal:
            text = _CONTROL.sub("", text)
            text = f"{DIM}{text}{PLAIN}" if dim else text
        self._write(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    @staticmethod
    def tell(text: str) -> None:
        """A remark of our own, which is no part of the answer."""
        if sys.stderr.isatty():
            text = f"{DIM}({text}){PLAIN}"
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _pace(tokens: int, ttft_s: float, rest_s: float) -> str:
    pace = f"{tokens} tokens, the first after {ttft_s:.2f} s"
    return f"{pace}, then {(tokens - 1) / rest_s:.1f}/s" if tokens > 1 and rest_s > 0 else pace
