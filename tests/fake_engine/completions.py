"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from tests.fake_engine import answers
from tests.fake_engine.answers import Direction, Script
from tests.fake_engine.calls import Call, Choice
from tests.fake_engine.refusal import Refusal
from tests.fake_engine.schema import CompletionRequest
from tests.fake_engine.tokens import Token, encode


class CompletionCall(Call):
    """One plain completion."""

    object_name = "text_completion"
    request: CompletionRequest

    async def serve(self) -> None:
        """Validate, generate, answer. Raises Refusal."""
        if not self.request.prompt or not all(self.request.prompts):
            raise Refusal(400, "Prompt cannot be empty")
        max_new = 0
        for prompt in self.request.prompts:
            self.prompt = encode(prompt) if isinstance(prompt, str) else list(prompt)
            self.prompts.append(self.prompt)
            max_new = self.max_new(self.request.max_tokens)
        self.prompt = [token for prompt in self.prompts for token in prompt]
        await self.run(max_new)

    def script(self, seed: int) -> Script:
        prompt = self.request.prompts[0]
        return answers.prose(seed, Direction.read(prompt if isinstance(prompt, str) else ""))

    def _echo(self, choice: Choice) -> str:
        if not self.request.echo:
            return ""
        prompt = self.request.prompts[choice.index // self.request.n]
        return prompt if isinstance(prompt, str) else " ".join(str(token) for token in prompt)

    def _logprobs(self, tokens: list[Token]) -> dict[str, Any] | None:
        """As in the real engine: the offsets are left to somebody else."""
        if self.request.logprobs is None:
            return None
        texts = [token.text for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [-0.5] * len(texts),
            "top_logprobs": [{text: -0.5} for text in texts] if self.request.logprobs else [],
            "text_offset": [-1] * len(texts),
        }

    def on_token(self, choice: Choice) -> None:
        if self.request.stream:
            self._send_unless_last(choice)

    def flush(self) -> None:
        for choice in self.choices:
            self._send_unless_last(choice)

    def _send_unless_last(self, choice: Choice) -> None:
        """The finish reason travels in the last text chunk, so the last token waits for it."""
        generation = choice.generation
        over = len(generation.output) > generation.script.natural_end
        ended = over and not generation.ignore_eos
        stopped = any(stop in generation.text for stop in generation.stops)
        last = ended or stopped or len(generation.output) >= generation.max_new
        if not last and generation.reason is None and self.due(choice):
            self._send(choice)

    def _send(self, choice: Choice) -> None:
        fresh = choice.tokens[choice.sent :]
        text = choice.take() if choice.sent else self._echo(choice) + choice.take()
        frame = choice.writer.text(
            choice.index,
            text,
            logprobs=self._logprobs(fresh),
            finish=choice.generation.reason,
            matched=choice.generation.matched,
            usage_now=self.current_usage(choice),
        )
        self.out.frame(frame)

    def current_usage(self, choice: Choice) -> dict[str, Any] | None:
        value = super().current_usage(choice)
        if value is not None:
            value["prompt_tokens_details"] = None
        return value

    def on_finished(self, choice: Choice) -> None:
        if self.request.stream and not (choice.generation.error or self.exchange.gone.is_set()):
            self._send(choice)
        super().on_finished(choice)

    def close_stream(self) -> None:
        """Nothing: every choice has sent its own end."""

    def choice_body(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": self._echo(choice) + choice.generation.text,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.generation.reason,
            "matched_stop": choice.generation.matched,
        }
