"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.fake_engine import answers
from tests.fake_engine.answers import Direction, Script
from tests.fake_engine.calls import Call, Choice
from tests.fake_engine.conforming import Filler, UnsupportedSchema
from tests.fake_engine.engine import Engine
from tests.fake_engine.faults import Fault
from tests.fake_engine.refusal import Refusal
from tests.fake_engine.scheduler import Generation
from tests.fake_engine.schema import ChatRequest, Tool, ToolChoice
from tests.fake_engine.tokens import Token, chat_prompt, message_text
from tests.fake_engine.toolcalls import call_script
from tests.fake_engine.wire import Exchange


class ChatCall(Call):
    """One chat request."""

    object_name = "chat.completion.chunk"
    request: ChatRequest

    def __init__(
        self, engine: Engine, exchange: Exchange, request: ChatRequest, plan: dict[str, Fault]
    ) -> None:
        super().__init__(engine, exchange, request, plan)
        self.tool: Tool | None = None

    async def serve(self) -> None:
        """Validate, generate, answer. Raises Refusal."""
        request = self.request
        self._check()
        self.prompt = chat_prompt(request.messages)
        max_new = self.max_new(request.asked_tokens)
        self.tool = self._chosen_tool()
        self._check_schema()
        await self.run(max_new)

    def _check(self) -> None:
        request, context = self.request, self.engine.options.context_length
        if not request.messages:
            raise Refusal(400, "Messages cannot be empty.")
        if request.tool_choice == "required" and not request.tools:
            raise Refusal(400, "Tools cannot be empty if tool choice is set to required.")
        if isinstance(request.tool_choice, ToolChoice):
            if not request.tools:
                raise Refusal(
                    400, "Tools cannot be empty if tool choice is set to a specific tool."
                )
            name = request.tool_choice.function.name
            if all(tool.function.name != name for tool in request.tools):
                raise Refusal(400, f"Tool '{name}' not found in tools list.")
        asked = request.asked_tokens
        if asked and asked > context:
            raise Refusal(
                400,
                f"max_completion_tokens is too large: {asked}."
                f"This model supports at most {context} completion tokens.",
            )
        wanted = request.response_format
        named = wanted.json_schema if wanted is not None else None
        if wanted is not None and wanted.type == "json_schema" and not (named and named.schema_):
            raise Refusal(400, "schema_ is required for json_schema response format request.")

    def _direction(self) -> Direction:
        users = [one for one in self.request.messages if one.get("role") == "user"]
        return Direction.read(message_text(users[-1]) if users else "")

    def _chosen_tool(self) -> Tool | None:
        tools, choice = self.request.tools or [], self.request.tool_choice
        if isinstance(choice, ToolChoice):
            return next(tool for tool in tools if tool.function.name == choice.function.name)
        if choice == "required":
            return tools[0]
        if choice == "auto":
            name = self._direction().tool
            return next((tool for tool in tools if tool.function.name == name), None)
        return None

    def _schema(self) -> Any:
        wanted = self.request.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object" or wanted.json_schema is None:
            return {"type": "object", "properties": {"answer": {"type": "string"}}}
        return wanted.json_schema.schema_

    def _check_schema(self) -> None:
        try:
            self._forced_text(0)
        except UnsupportedSchema as error:
            message = (
                "Failed to compile json grammar: [00:00:00] "
                f"/project/cpp/json_schema_converter.cc:4175: {error}\n"
            )
            raise Refusal(400, message, late=True) from None

    def _forced_text(self, seed: int) -> str | None:
        if self.tool is not None:
            return Filler(self.tool.function.parameters or {"type": "object"}, seed).text()
        schema = self._schema()
        return None if schema is None else Filler(schema, seed).text()

    def script(self, seed: int) -> Script:
        forced = self._forced_text(seed)
        if self.tool is not None and forced is not None:
            return call_script(self.tool.function.name, forced, seed)
        if forced is not None:
            return answers.fixed(forced, seed)
        if self.request.adapter is not None:
            return answers.fixed(f"I am {self.engine.adapters.named(self.request.adapter)}.", seed)
        return answers.prose(seed, self._direction())

    def on_token(self, choice: Choice) -> None:
        if self.request.stream and self.due(choice):
            self._send_step(choice)

    def flush(self) -> None:
        for choice in self.choices:
            if self.due(choice):
                self._send_step(choice)

    def _send_step(self, choice: Choice) -> None:
        """What the real engine sends for one output: role at first, then what became visible."""
        if not choice.sent:
            self.out.frame(choice.writer.chat(choice.index, role=True, content=""))
            if self.tool is not None and choice.tokens:
                self._send_tool_name(choice, self.tool.function.name)
        fresh = choice.tokens[choice.sent :]
        text = choice.take()
        if not text:
            return
        now = self.current_usage(choice)
        if self.tool is not None:
            self.out.frame(choice.writer.tool(choice.index, text, usage_now=now))
            return
        logprobs = None
        if self.request.logprobs:
            logprobs = _logprobs(fresh, self.request.top_logprobs or 0)
        frame = choice.writer.chat(choice.index, content=text, logprobs=logprobs, usage_now=now)
        self.out.frame(frame)

    def _send_tool_name(self, choice: Choice, name: str) -> None:
        now = self.current_usage(choice)
        frame = choice.writer.tool(choice.index, "", call_id=_call_id(), name=name, usage_now=now)
        self.out.frame(frame)

    def _finish(self, generation: Generation) -> tuple[str | None, int | str | None]:
        reason = generation.reason
        if reason == "stop" and self.tool is not None:
            reason = "tool_calls"
        return reason, generation.matched

    def close_stream(self) -> None:
        for choice in self.finished_choices:
            if choice.pending or not choice.sent:
                self._send_step(choice)
        last = self.last_writer()
        for choice in self.finished_choices:
            reason, matched = self._finish(choice.generation)
            self.out.frame(last.chat(choice.index, finish=reason, matched=matched))

    def choice_body(self, choice: Choice) -> dict[str, Any]:
        generation = choice.generation
        reason, matched = self._finish(generation)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": generation.text,
            "reasoning_content": None,
        }
        if self.tool is not None and reason != "abort":
            function = {"name": self.tool.function.name, "arguments": generation.text}
            call = {"id": _call_id(), "index": 0, "type": "function", "function": function}
            message.update(content="", tool_calls=[call])
            matched = None if reason == "tool_calls" else matched
        logprobs = None
        if self.request.logprobs:
            logprobs = _logprobs(choice.tokens, self.request.top_logprobs or 0)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": reason,
            "matched_stop": matched,
        }


def _call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


def _logprobs(tokens: list[Token], top: int) -> dict[str, Any]:
    """Log probabilities that depend on nothing but the token."""
    rows = []
    for token in tokens:
        own = {
            "token": token.text,
            "bytes": list(token.text.encode()),
            "logprob": -(token.id % 997) / 500,
        }
        others = [
            {"token": "!" * (rank + 1), "bytes": [33] * (rank + 1), "logprob": -3.0 - rank}
            for rank in range(top - 1)
        ]
        rows.append({**own, "top_logprobs": [own, *others][:top]})
    return {"content": rows}
