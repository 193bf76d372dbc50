"""GET /v1/models and /v1/models/{id}: what the caller's key may use, and how it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from inferd.api.access import Access
from inferd.api.caller import caller_of
from inferd.errors import ModelNotAllowed
from inferd.routing.pools import ModelView

OWNER: Final = "inferd"

PoolState = Callable[[str], str]
"""`ready` when a worker of the pool takes requests, else `loading`, `draining` or `unavailable`."""


class Models:
    """The two endpoints. `created` is when this process learnt of its models, in epoch seconds."""

    def __init__(self, access: Access, pool_state: PoolState, created: int) -> None:
        self._access = access
        self._pool_state = pool_state
        self._created = created

    async def list(self, http: Request) -> Response:
        caller = caller_of(http, self._access)
        views = self._access.pools.visible(caller, self._access.team(caller))
        return _json({"object": "list", "data": [self._body(view) for view in views]})

    async def one(self, http: Request) -> Response:
        """One model, under a name, an alias or `name@version`. DELETE is of fine-tunes elsewhere.

        Raises:
            UnknownModel, ModelNotAllowed: as for a request that names it; for any DELETE.
        """
        caller = caller_of(http, self._access)
        name = http.path_params["model"]
        view = self._access.pools.view(name, caller, self._access.team(caller))
        if http.method == "DELETE":
            raise ModelNotAllowed(
                f"The model `{view.id}` cannot be deleted here: what is served stands in its "
                "operator's configuration.",
                code="insufficient_permissions",
                param="model",
            )
        return _json(self._body(view))

    def _body(self, view: ModelView) -> dict[str, Any]:
        return {
            "id": view.id,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "parent": view.parent,
            "kind": view.kind,
            "version": view.version,
            "versions": list(view.versions),
            "aliases": list(view.aliases),
            "context_tokens_max": view.context_tokens_max,
            "output_tokens_max": view.output_tokens_max,
            "state": self._pool_state(view.pool),
        }


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
