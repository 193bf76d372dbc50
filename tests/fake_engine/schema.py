"""What the real engine validates in a request body, as far as the gateway can send it.

Errors are pydantic's, rendered with the file path the real server leaks; see `validation_error`.
"""

from __future__ import annotations

from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

_SOURCE = "/opt/engine/venv/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py"
_PLACES = {
    "/v1/chat/completions": (1870, "openai_v1_chat_completions"),
    "/v1/completions": (1860, "openai_v1_completions"),
}


UNSUPPORTED_MEDIA_TYPE = {
    "loc": ["header", "content-type"],
    "msg": "Unsupported Media Type: Only 'application/json' is allowed",
    "type": "value_error",
}


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StreamOptions(_Lenient):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Function(_Lenient):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(_Lenient):
    type: str = "function"
    function: Function


class NamedFunction(_Lenient):
    name: str


class ToolChoice(_Lenient):
    type: Literal["function"] = "function"
    function: NamedFunction


class JsonSchema(_Lenient):
    name: str
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Lenient):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class Sampling(_Lenient):
    """Fields that chat and plain completions share."""

    model: str = "default"
    n: int = 1
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    rid: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    lora_path: str | None = None
    bootstrap_host: str = "127.0.0.1"
    bootstrap_port: int = 8998
    bootstrap_room: int | None = None
    adapter: str | None = None
    """Set by the engine: the adapter that answers."""

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def isolation(self) -> str:
        return (self.cache_salt or "") + (self.extra_key or "") + (self.adapter or "")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return bool(options and options.include_usage and options.continuous_usage_stats)


class ChatRequest(Sampling):
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | Literal["auto", "required", "none"] = "auto"

    @property
    def asked_tokens(self) -> int | None:
        """Zero is a limit too: the prompt alone is computed."""
        if self.max_completion_tokens is None:
            return self.max_tokens
        return self.max_completion_tokens


class CompletionRequest(Sampling):
    prompt: list[int] | list[list[int]] | str | list[str]
    max_tokens: int | None = 16
    echo: bool = False
    logprobs: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or many, as a list."""
        value: Any = self.prompt
        if isinstance(value, list) and value and not isinstance(value[0], int):
            return list(value)
        return [value]


def check_media_type(header: str) -> None:
    """Only JSON is taken. Raises ValidationProblem."""
    if header.lower().split(";", maxsplit=1)[0] != "application/json":
        raise ValidationProblem([UNSUPPORTED_MEDIA_TYPE], inside=False)


def parse(body: bytes, kind: type[Sampling]) -> Any:
    """Read a body. Raises ValidationProblem with the real server's message.

    Raises TypeError if the JSON is not an object: the real server answers 500 to that.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        reason = error.msg.split(":")[0]
        raise ValidationProblem(
            [
                {
                    "type": "json_invalid",
                    "loc": ("body", error.pos),
                    "msg": "JSON decode error",
                    "input": {},
                    "ctx": {"error": reason},
                }
            ]
        ) from None
    if not isinstance(value, dict):
        raise TypeError(f"a body that is {type(value).__name__}")
    if kind is ChatRequest and "tool_choice" not in value:
        value["tool_choice"] = "auto" if value.get("tools") else "none"
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ValidationProblem(
            [
                {**problem, "loc": ("body", *problem["loc"])}
                for problem in error.errors(include_url=False)
            ]
        ) from None


class ValidationProblem(Exception):
    """The body is not what the endpoint takes. `inside`: the endpoint's function was reached."""

    def __init__(self, problems: list[Any], *, inside: bool = True) -> None:
        super().__init__(len(problems))
        self._problems = problems
        self._inside = inside

    def message(self, path: str) -> str:
        """What the real server says, file path included."""
        count = len(self._problems)
        text = f"{count} validation error{'s' if count > 1 else ''}:\n"
        text += "\n".join(f"  {problem}" for problem in self._problems)
        if self._inside:
            line, function = _PLACES[path]
            text += f'\n\n  File "{_SOURCE}", line {line}, in {function}\n    POST {path}'
        return f"{text} {self._problems}"
