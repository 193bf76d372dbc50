"""The real engine's refusals."""

from __future__ import annotations


class Refusal(Exception):
    """The request is refused. `late`: a stream has its 200 by then and gets an error event."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", *, late: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.late = late
