"""/healthz and /readyz of both listeners, /metrics of the admin one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from inferd.metrics import EXPOSITION_TYPE

UNAVAILABLE = 503


class Probes:
    """`readiness` tells whether requests are taken, and why not; `exposition` gives the metrics."""

    def __init__(
        self, readiness: Callable[[], tuple[bool, dict[str, Any]]], exposition: Callable[[], bytes]
    ) -> None:
        self._readiness = readiness
        self._exposition = exposition

    async def healthz(self, http: Request) -> Response:
        """The process answers; nothing is said of workers."""
        del http
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(self, http: Request) -> Response:
        """200 while requests are taken and some worker is ready; 503 from the first SIGTERM on.

        Open to anybody, so it names no model.
        """
        del http
        return self._answer_readiness(detailed=False)

    async def readyz_detailed(self, http: Request) -> Response:
        """The same with the state of each pool, for the admin listener."""
        del http
        return self._answer_readiness(detailed=True)

    def _answer_readiness(self, *, detailed: bool) -> Response:
        ready, body = self._readiness()
        shown = body if detailed else {"status": body["status"]}
        status = 200 if ready else UNAVAILABLE
        return Response(orjson.dumps(shown), status, media_type="application/json")

    async def metrics(self, http: Request) -> Response:
        del http
        return Response(self._exposition(), media_type=EXPOSITION_TYPE)
