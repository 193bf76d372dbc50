"""What holds for every upload and download: a place, a time limit, a count of how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferd.api.disconnect import ClientGoneError
from inferd.batch.objects import FileStore
from inferd.errors import BodyTimeout, LimitError, RequestError


@asynccontextmanager
async def transferring(store: FileStore, direction: str) -> AsyncIterator[None]:
    """One transfer.

    Raises:
        QueueFull: there are too many. BodyTimeout: it takes too long.
    """
    limit_s = store.limits.transfer_s_max
    outcome = "failed"
    try:
        with store.transfer():
            async with asyncio.timeout(limit_s):
                yield
        outcome = "completed"
    except TimeoutError:
        raise BodyTimeout(f"The transfer took longer than {limit_s:g} seconds.") from None
    except (RequestError, LimitError):
        outcome = "refused"
        raise
    except (ClientGoneError, asyncio.CancelledError):
        outcome = "client_left"
        raise
    finally:
        store.metrics.file_transfers[direction, outcome].inc()


def expiry_us(now_us: int, life_s: int) -> int:
    """Wall time in microseconds at which a file of that life ends."""
    return now_us + life_s * 1_000_000
