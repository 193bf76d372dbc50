"""The route tables and the order of the layers, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.api import openapi
from inferd.api.admin_auth import AdminAuth
from inferd.api.audit import Audit
from inferd.api.cors import Cors
from inferd.api.inference_endpoint import InferenceEndpoint
from inferd.api.middleware import Count, Envelope, Refused, Writer
from inferd.api.models import Models
from inferd.api.probes import Probes
from inferd.storage.audit import Action

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""On the admin listener, reachable without the admin key."""


class Direct:
    """Inference is asked for by its exact path: to that no list of patterns is searched.

    Any other path or method is the router's, which knows the same routes and refuses in words.
    """

    def __init__(self, router: Router, routes: Iterable[Route]) -> None:
        self._router = router
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"])
        if route is None or scope["method"] != "POST":
            await self._router(scope, receive, send)
            return
        scope["route"] = route
        await route.app(scope, receive, send)


class HasRoutes(Protocol):
    """A part of the admin API."""

    def routes(self) -> list[Route]: ...


def public_app(
    endpoints: Iterable[InferenceEndpoint],
    models: Models,
    probes: Probes,
    count: Count,
    cors_origins: Collection[str] = (),
    stored: Iterable[Route] = (),
    refused: Refused | None = None,
    writer: Writer | None = None,
) -> ASGIApp:
    """What teams reach. `stored`: paths of what is kept for them; `writer`: who must keep up."""
    inference = [Route(one.path, one, methods=["POST"]) for one in endpoints]
    router = Router(
        [
            *inference,
            Route(openapi.PATH, openapi.Document().get, methods=["GET"]),
            Route("/v1/models", models.list, methods=["GET"]),
            Route("/v1/models/{model:path}", models.one, methods=["GET", "DELETE"]),
            *stored,
            Route("/healthz", probes.healthz, methods=["GET"]),
            Route("/readyz", probes.readyz, methods=["GET"]),
        ],
        redirect_slashes=False,
    )
    direct = Direct(router, inference)
    app = Cors(direct, cors_origins) if cors_origins else direct
    return Envelope(app, count=count, routes=router.routes, refused=refused, writer=writer)


def admin_app(
    apis: Iterable[HasRoutes],
    probes: Probes,
    admin_key: str,
    count: Count,
    note: Callable[[Action], object],
    beside: Callable[[ASGIApp], ASGIApp] = lambda api: api,
) -> ASGIApp:
    """What admins and ops reach, on loopback; `note` takes what they did.

    `beside` puts the API next to what has a door of its own.
    """
    router = Router(
        [
            *[route for api in apis for route in api.routes()],
            Route("/healthz", probes.healthz, methods=["GET"]),
            Route("/readyz", probes.readyz_detailed, methods=["GET"]),
            Route("/metrics", probes.metrics, methods=["GET"]),
        ],
        redirect_slashes=False,
    )
    api = AdminAuth(Audit(router, note), admin_key, OPEN_PATHS)
    return Envelope(beside(api), count=count, routes=router.routes, operator=True)
