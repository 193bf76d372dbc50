"""The two clocks. Elapsed time is the running loop's time; wall time is only stored and shown.

Nothing else in the code base reads a clock: a test enforces it. Pure modules take `now` as an
argument, so a test on a virtual loop runs a day of operation in milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


def monotonic() -> float:
    """Seconds on the running loop's clock; only differences mean anything."""
    return asyncio.get_running_loop().time()


def utc_now() -> datetime:
    """Wall time, for timestamps that are stored or shown."""
    return datetime.now(UTC)


def utc_now_us() -> int:
    """Wall time as integer microseconds since the Unix epoch, the unit the database stores."""
    return time.time_ns() // 1_000
