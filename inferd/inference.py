"""What one inference request is, inside the house: frozen values without any library's types.

`http` is the Starlette object, `request` is the `InferenceRequest` made from it once, after
validation. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SYSTEM_TEAM = "system"
"""Who pays for warm-up and probes. Reserved: no team in inferd.toml may take the name."""


class Endpoint(StrEnum):
    """The public path of a request, as the ledger names it; the engine's is mostly the same."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    INPUT_TOKENS = "/v1/responses/input_tokens"
    TOKENIZE = "/v1/tokenize"

    @property
    def engine_path(self) -> str:
        return _ENGINE_PATHS.get(self, self.value)

    @property
    def prompt_param(self) -> str:
        """The parameter that a prompt comes in."""
        return _PROMPT_PARAMS.get(self, "messages")

    @property
    def generates(self) -> bool:
        """The engine writes an answer, token by token."""
        return self in _GENERATING

    @property
    def takes_claims(self) -> bool:
        """The engine schedules it: it has an id there and a priority."""
        return self.engine_path != Endpoint.TOKENIZE


_PROMPT_PARAMS = {
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.EMBEDDINGS: "input",
    Endpoint.RESPONSES: "input",
    Endpoint.INPUT_TOKENS: "input",
}
_PROMPTS = ("messages", "prompt", "tools")
"""Where a body's text is."""
_ENGINE_PATHS = {Endpoint.RESPONSES: Endpoint.CHAT, Endpoint.INPUT_TOKENS: Endpoint.TOKENIZE}
_GENERATING = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES})
_ID_PREFIXES = {
    Endpoint.CHAT: "chatcmpl-",
    Endpoint.COMPLETIONS: "cmpl-",
    Endpoint.EMBEDDINGS: "embd-",
    Endpoint.RESPONSES: "resp_",
    Endpoint.INPUT_TOKENS: "tok-",
    Endpoint.TOKENIZE: "tok-",
}


class ModelKind(StrEnum):
    """What a model's workers do. One that embeds dies of a chat request."""

    CHAT = "chat"
    EMBEDDING = "embedding"


class Priority(StrEnum):
    """Queue class of a request: batch is placed only when no interactive request waits."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Outcome(StrEnum):
    """How a request ended, as the ledger, the metrics and the access log name it."""

    COMPLETED = "completed"
    CLIENT_LEFT = "client_left"
    REFUSED = "refused"  # never placed on a worker: limits, queue, no worker
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, as the engine counted them (or as relayed, when `estimated`)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter, as clients name it and as engines do."""

    name: str
    """Public, from the configuration."""
    key: str
    """The engine's name for it: another folder under the same public name has another one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the result of authentication. Holds no secret."""

    team: str
    key_id: str
    models: frozenset[str] | None = None
    """Public model names the key may use; None means every model of its team."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What validation needs to know of a model."""

    name: str
    context_tokens_max: int
    output_tokens_max: int
    choices_max: int
    reasoning: bool = False
    kind: ModelKind = ModelKind.CHAT
    dimensions: tuple[int, ...] = ()
    """Sizes of an embedding that may be asked for; empty: only the model's own."""
    vocabulary_tokens: int | None = None
    """Ids below it are tokens; None: unknown. An engine dies of an id that is none."""
    extras: frozenset[str] | None = None
    """Parameters of the engine's own that requests may use; None: all that are known."""
    sampling: dict[str, float] = field(default_factory=dict, hash=False)
    """Parameters of a request that does not say, by the engine's names."""
    output_tokens_default: int | None = None
    """Of a chat that names none; None: `output_tokens_max`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt as a chain of block keys: an equal key is an equal whole prefix up to its block."""

    keys: tuple[int, ...] = ()
    block_tokens: float = 64.0
    """Tokens of one block, estimated."""
    hint: int | None = None
    """The client's `prompt_cache_key`, as a block key of its own."""


NO_PREFIX = Prefix()


@dataclass(slots=True)  # made for every request: frozen it would take twice as long
class InferenceRequest:
    """A validated request, never changed but by `forget_prompt`.

    `body` is the engine's payload without the fields dispatch owns.
    """

    request_id: str
    team: str
    key_id: str
    endpoint: Endpoint
    model: str
    """The public name as the client wrote it; sent to the engine, which echoes it."""
    pool: str
    """`model@version`: where it is queued."""
    body: dict[str, Any]
    prompt_bytes: int
    """UTF-8 bytes of all text of the prompt: the input of the token estimate."""
    prompt_tokens_estimated: int
    output_tokens_max: int
    """Per choice; always sent to the engine as max_tokens."""
    output_tokens_given: bool
    """False: the client asked for no limit, so it may be lowered to what the context has left."""
    choices: int
    """Sequences that the engine works on: `n` for each prompt, or the inputs to embed."""
    stream: bool
    include_usage: bool
    priority: Priority
    deadline: float
    """Loop time after which nobody waits for the answer any more."""
    one_tool_call: bool = False
    """The client refused parallel tool calls: the gateway lets one through per choice."""
    service_tier: str | None = None
    """Echoed in the answer; None: the client named none."""
    metadata: dict[str, str] = field(default_factory=dict)
    prefix: Prefix = NO_PREFIX
    shared_cache: bool = False
    """Any team may find its prompt in the engine's cache, not only its own."""
    rank: int = 0
    """Under overload the lower ranks are shed first."""
    tokens_per_event: int = 1
    """The most that its worker tells in one event of a stream."""
    traceparent: str | None = None
    """Of its client, if it told one: W3C's header."""
    why: dict[str, str] | None = None
    """Where to note why it went where it went, if the client asked: response headers."""
    echo: dict[str, Any] = field(default_factory=dict)
    """What the answer repeats of the request in its endpoint's own form."""
    adapter: Adapter | None = None
    """The LoRA adapter that answers, on the pool's weights."""
    longer_pool: str | None = None
    """Where a prompt goes that turns out to be too long for `pool`."""
    context_tokens_max: int = 0
    """Of its model: prompt and output together; 0: unknown."""
    counted: bool = False
    """`prompt_tokens_estimated` is no estimate: the model's own tokenizer has counted."""

    def forget_prompt(self) -> None:
        """Its client sees an answer: no other worker is asked, so a stream holds no prompt."""
        for name in _PROMPTS:
            self.body.pop(name, None)

    @property
    def public_model(self) -> str:
        """Whose name the ledger and the metrics show: the adapter's, else the pool's model."""
        return self.adapter.name if self.adapter else self.pool.rpartition("@")[0]

    @property
    def cost_tokens(self) -> int:
        """Tokens claimed before anything is known: estimated input + the most output allowed."""
        return self.prompt_tokens_estimated + self.output_tokens_max * self.choices


def adapter_of(name: str, weights: str) -> Adapter:
    """The engine's name has no character that means something to it, and follows the folder."""
    mark = hashlib.sha256(f"{name}\0{weights}".encode()).hexdigest()[:16]
    return Adapter(name, f"lora-{mark}")


class _Unguessable:
    """Random bits for ids, drawn from the kernel for many at a time: one draw costs as much as all.

    No process forks with it: what inferd starts is another program.
    """

    DRAWN_BYTES = 4_096
    ID_BYTES = 16

    def __init__(self) -> None:
        self._drawn = b""
        self._used_bytes = 0

    def hex(self) -> str:
        """32 hex digits that were never given before."""
        start = self._used_bytes
        end = start + self.ID_BYTES
        if end > len(self._drawn):
            self._drawn = secrets.token_bytes(self.DRAWN_BYTES)
            start, end = 0, self.ID_BYTES
        self._used_bytes = end
        return self._drawn[start:end].hex()


_unguessable = _Unguessable()


def new_request_id() -> str:
    """The x-request-id of one HTTP request: `req_` and 32 hex digits."""
    return "req_" + _unguessable.hex()


def new_attempt_id(endpoint: Endpoint = Endpoint.CHAT) -> str:
    """The engine's rid and the public response id of one attempt.

    Always the same length for an endpoint: the engine matches abort ids by prefix, so an id that
    could be the start of another one would abort both.
    """
    return _ID_PREFIXES[endpoint] + _unguessable.hex()
