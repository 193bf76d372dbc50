"""Whether a file can be a batch at all, told from its beginning while it arrives. Pure.

Only the first line is looked at; the whole file is validated when a batch is made of it.
"""

from __future__ import annotations

from typing import Final

import orjson

CHARS_LOOKED_AT: Final = 262_144
"""A longer first line is left to validation: parsing it here would hold up everybody else."""
_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n"


class FirstLine:
    """Takes a file piece by piece. `refused` says why it is no batch; None as far as is known.

    `decided`: what comes behind changes nothing any more.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self._head = bytearray()
        self.decided = False

    def take(self, data: bytes) -> None:
        if self.decided:
            return
        self._head += data[: CHARS_LOOKED_AT - len(self._head)]
        line, end, _ = bytes(self._head.removeprefix(_BOM).lstrip(_BLANK)).partition(b"\n")
        if end:
            self._decide(line)
        elif len(self._head) == CHARS_LOOKED_AT:
            self.decided = True

    def end(self) -> None:
        """The file is complete: what there is is its first line."""
        if not self.decided:
            self._decide(bytes(self._head.removeprefix(_BOM).lstrip(_BLANK)))

    def _decide(self, line: bytes) -> None:
        self.decided = True
        self._head.clear()
        if not line.strip():
            self.refused = "The file is empty."
            return
        try:
            if isinstance(orjson.loads(line), dict):
                return
        except orjson.JSONDecodeError:
            pass
        self.refused = "The first line is not a JSON object in UTF-8."
