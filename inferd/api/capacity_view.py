"""How much of each pool was used, by interactive requests and by batch work, and how much was idle.

For admins, over the hours that the usage beside it is of. No HTTP here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from inferd.storage import capacity
from inferd.storage.capacity import Capacity, CapacityDimension, CapacityFilter
from inferd.storage.rollup import HourDimension, HourFilter, Readable

_TIMES: Final[tuple[CapacityDimension, ...]] = ("hour", "day")
_US: Final = 1_000_000

Answer = dict[str, Any]


async def capacity_of(
    db: Readable, where: HourFilter, by: Sequence[HourDimension]
) -> list[Answer] | None:
    """Each pool, by hour or day too if `by` has one; None of a part of the requests only.

    `interactive`, `batch` and `idle` are shares of the slots and make one; `busy` is the share of
    the time in which a worker had any request; `worker_s` seconds that workers could serve.
    """
    if where.team is not None or where.key_id is not None or where.priority is not None:
        return None
    pools = CapacityFilter(
        since_us=where.since_us, until_us=where.until_us, model=where.model, version=where.version
    )
    groups: list[CapacityDimension] = [*(name for name in _TIMES if name in by), "pool"]
    found = await capacity.sums(db, pools, groups)
    return [_answer(dict(zip(groups, group, strict=True)), used) for group, used in found]


def _answer(group: Answer, used: Capacity) -> Answer:
    for name in _TIMES:
        if name in group:
            group[name] = group[name] // _US
    interactive = _share(used.interactive_us, used.slot_us)
    batch = _share(used.batch_us, used.slot_us)
    return {
        **group,
        "worker_s": used.worker_us / _US,
        "slot_s": used.slot_us / _US,
        "interactive": interactive,
        "batch": batch,
        "idle": max(0.0, 1.0 - interactive - batch),
        "busy": _share(used.busy_us, used.worker_us),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
