"""How one pool decides: its policy, its targets, what its engine is thought to cost. A value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from inferd.config.schema import Model, Targets
from inferd.config.version import Version
from inferd.routing.cost_model import H100_8B, EngineCost, engine_cost
from inferd.routing.placement import HASHED_BLOCKS

HEADROOM: Final = "kv_headroom"
"""The placement of the decode side of a split pool; no model is configured with it."""
KV_TOKENS_GUESS: Final = 430_000
"""What an engine's KV cache is thought to hold until it is known: the index's size, no limit."""


@dataclass(frozen=True, slots=True)
class Serving:
    """`refuse_late`: 429 as soon as no worker can give the first token within the target."""

    placement: str = "least_tokens"
    targets: Targets = field(default_factory=Targets)
    cost: EngineCost = H100_8B
    refuse_late: bool = False
    kv_tokens: int | None = None
    batch_utilization_max: float = 1.0
    """A busier target takes no batch work; 1: as long as it takes any."""
    hashed_blocks: int = HASHED_BLOCKS

    def decoding(self) -> Serving:
        """The same engine where it only decodes: nobody is refused there for being late."""
        return replace(self, placement=HEADROOM, refuse_late=False)

    @classmethod
    def of(cls, model: Model, version: Version) -> Serving:
        engine = version.engine
        return cls(
            placement=model.placement,
            targets=model.targets,
            cost=engine_cost(engine.device, engine.tensor_parallel, engine.chunked_prefill_tokens),
            refuse_late=model.queue.refuse_late and model.placement == "predicted_ttft",
            kv_tokens=engine.kv_tokens_max,
            batch_utilization_max=model.queue.batch_utilization_max,
        )
