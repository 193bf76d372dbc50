"""Looking on while others work."""

from __future__ import annotations

import threading


def pause(seconds: float) -> None:
    """Nothing ends it early."""
    threading.Event().wait(seconds)
