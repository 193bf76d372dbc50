"""What every change between two configurations is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Reload = Literal["live", "drain", "restart"]


@dataclass(frozen=True, slots=True)
class Change:
    """Base of all changes."""

    reload: ClassVar[Reload] = "live"
