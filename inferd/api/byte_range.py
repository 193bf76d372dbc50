"""The Range header of a download: one range of bytes, as RFC 9110 has it. Pure."""

from __future__ import annotations

import re
from typing import Final

from inferd.errors import RangeNotSatisfiable

_ONE: Final = re.compile(rb"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.IGNORECASE)


def byte_range(value: bytes | None, size: int) -> tuple[int, int] | None:
    """First byte and the one behind the last of what is asked of `size` bytes; None: all of it.

    What cannot be understood and several ranges are answered whole, as the RFC allows.

    Raises:
        RangeNotSatisfiable: nothing lies in the range.
    """
    found = _ONE.fullmatch(value) if value is not None else None
    if found is None or found.groups() == (b"", b""):
        return None
    first, last = found.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < int(first):
            return None
    if start >= size or start >= stop:
        raise RangeNotSatisfiable(
            f"The range lies behind the end: the file has {size} bytes.", size=size
        )
    return start, stop
