"""The first prompts of a worker: does it answer sensibly, how fast is it, what did that cost.

The first one makes the engine do what it does only once; the next is measured to its first token;
the last is its longer twin, so that the difference gives the time per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from inferd import clock
from inferd.errors import UpstreamError
from inferd.inference import Endpoint, ModelKind, Usage, new_attempt_id
from inferd.upstream.answer import choices_of, usage_of
from inferd.workers import engine
from inferd.workers.client import WorkerClient
from inferd.workers.spec import Side

GOLDEN: Final = "What is the capital of France? Answer in one sentence."
MEASURED: Final = "Count from one to twenty."
TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the prompts have shown; `ttft_s` and `tpot_s` are those of an idle worker."""

    usage: Usage
    """Of all of them: the bill."""
    ttft_s: float
    tpot_s: float
    new_tokens: int
    """Prompt tokens that were computed within `ttft_s`."""


async def warm_up(
    client: WorkerClient,
    model: str,
    timeout_s: float,
    kind: ModelKind = ModelKind.CHAT,
    side: Side = Side.WHOLE,
) -> WarmUp:
    """Send the prompts one after another, each waited for at most `timeout_s` seconds.

    One side of a split pool answers without its partner, so that what it says means nothing; one
    that computes prompts makes a single token, so that nothing is learnt of its steps.

    Raises:
        InferdError: a prompt was refused, failed, took too long, or got an answer without text or
            of another form.
    """
    if kind is ModelKind.EMBEDDING:
        return await _embed(client, model, timeout_s)
    golden, _ = await _ask(client, model, GOLDEN, TOKENS, timeout_s, side)
    message = choices_of(golden, "message", 1)[0]["message"]
    if side is Side.WHOLE and not (message.get("content") or message.get("reasoning_content")):
        raise UpstreamError("its answer to the warm-up prompt is empty")
    first, first_s = await _ask(client, model, MEASURED, 1, timeout_s, side)
    whole, whole_s = await _ask(client, model, MEASURED, TOKENS + 1, timeout_s, side)
    usages = [usage_of(answer["usage"]) for answer in (golden, first, whole)]
    return WarmUp(
        usage=Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        ),
        ttft_s=first_s,
        tpot_s=0.0 if side is Side.PREFILL else max(whole_s - first_s, 0.0) / TOKENS,
        new_tokens=usages[1].prompt_tokens - usages[1].cached_tokens,
    )


async def _embed(client: WorkerClient, model: str, timeout_s: float) -> WarmUp:
    """Two texts: the first makes the engine ready, the second is measured."""
    tokens, new_tokens, seconds = 0, 0, 0.0
    for text in (GOLDEN, MEASURED):
        start = clock.monotonic()
        answer = await client.complete(
            Endpoint.EMBEDDINGS, {"model": model, "input": text}, timeout_s
        )
        seconds = clock.monotonic() - start
        if not answer.get("data") or not isinstance(answer.get("usage"), dict):
            raise UpstreamError("its answer to the warm-up text has no embedding or no usage")
        new_tokens = usage_of(answer["usage"]).prompt_tokens
        tokens += new_tokens
    usage = Usage(prompt_tokens=tokens)
    return WarmUp(usage=usage, ttft_s=seconds, tpot_s=0.0, new_tokens=new_tokens)


async def _ask(
    client: WorkerClient,
    model: str,
    prompt: str,
    tokens: int,
    timeout_s: float,
    side: Side,
) -> tuple[dict[str, Any], float]:
    """The whole answer and how many seconds it took."""
    payload = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,  # the measured lengths are what they are asked to be
        "rid": new_attempt_id(),
    }
    if side is not Side.WHOLE:
        payload |= engine.NO_PARTNER
    start = clock.monotonic()
    answer = await client.complete(Endpoint.CHAT, payload, timeout_s)
    usage = answer.get("usage")
    if not choices_of(answer, "message", 1) or not usage or not isinstance(usage, dict):
        raise UpstreamError("its answer to the warm-up prompt has no choices or no usage")
    return answer, clock.monotonic() - start
