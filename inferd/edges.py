"""Where an estimate of a prompt's tokens would decide: such a prompt is counted before anything.

Three edges: the model's context, the tightest bucket, and whether a worker can answer in time. Far
from all of them a request costs nothing here but a few comparisons. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from inferd.clock import monotonic
from inferd.errors import ContextLengthExceeded
from inferd.inference import InferenceRequest, Prefix
from inferd.quota.exact_counts import HIGH, LOW

if TYPE_CHECKING:
    from inferd.quota.buckets import Buckets
    from inferd.quota.exact_counts import ExactCounts
    from inferd.routing.scheduler import Scheduler


class Edges:
    """Reads the owners of buckets and queues; decides nothing for them."""

    def __init__(
        self, exact: ExactCounts, buckets: Buckets, schedulers: Mapping[str, Scheduler]
    ) -> None:
        self._exact = exact
        self._buckets = buckets
        self._schedulers = schedulers

    def decide(self, request: InferenceRequest) -> bool:
        """Whether the estimate would, and the prompt can be counted."""
        if not self._exact.knows(request.pool):
            return False
        low = int(request.prompt_tokens_estimated * LOW)
        high = int(request.prompt_tokens_estimated * HIGH) + 1
        output = request.output_tokens_max if request.output_tokens_given else 1
        if request.context_tokens_max and high + output > request.context_tokens_max:
            return True
        claimed = request.output_tokens_max * request.choices
        model = request.pool.rpartition("@")[0]
        for limit in self._buckets.edges(
            request.team, monotonic(), model=model, key_id=request.key_id
        ):
            if low + claimed <= limit < high + claimed:
                return True
        scheduler = self._schedulers.get(request.pool)
        return scheduler is not None and scheduler.turns_on_tokens(request.priority, low, high)

    async def count(self, request: InferenceRequest) -> InferenceRequest:
        """The request with its prompt counted, and its output fitted to what is left.

        One that another version takes if it is too long here is left for dispatch to move.

        Raises:
            ContextLengthExceeded: it surely does not fit.
        """
        tokens = await self._exact.count(request)
        if tokens is None:
            return request
        context = request.context_tokens_max
        output = request.output_tokens_max
        wanted = output if request.output_tokens_given else 1
        if not context or (request.longer_pool is not None and tokens + wanted > context):
            return _counted(request, tokens, request.output_tokens_max)
        if tokens >= context:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens. However, your messages"
                f" resulted in {tokens} tokens. Please reduce the length of the messages.",
                param="messages",
            ).about(request.endpoint.prompt_param)
        if request.output_tokens_given and tokens + output > context:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{tokens + output} tokens ({tokens} in the messages, {output} in the completion). "
                "Please reduce the length of the messages or completion.",
                param="messages",
                room_tokens=context - tokens,
            ).about(request.endpoint.prompt_param)
        return _counted(request, tokens, min(output, context - tokens))


def _counted(request: InferenceRequest, tokens: int, output_tokens_max: int) -> InferenceRequest:
    prefix = request.prefix
    if prefix.keys:
        scale = tokens / max(1, request.prompt_tokens_estimated)
        prefix = Prefix(prefix.keys, prefix.block_tokens * scale)
    return replace(
        request,
        prompt_tokens_estimated=tokens,
        output_tokens_max=output_tokens_max,
        prefix=prefix,
        counted=True,
    )
