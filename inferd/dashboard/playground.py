"""Two models side by side: the page, and its chat endpoint, which bills a team of choice.

The endpoint is the public one, with all of its checks, limits and its ledger row; only who pays is
not told by a key but by the session and a header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.routing import Route

from inferd.api.headers import header
from inferd.dashboard.site import ROOT
from inferd.errors import InvalidField, InvalidKey
from inferd.inference import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from inferd.api.inference_endpoint import InferenceEndpoint
    from inferd.config.schema import Config
    from inferd.dashboard.session import Session
    from inferd.dashboard.site import Site

KEY_ID: Final = "dashboard"
"""What the ledger says instead of a key."""
TEAM_HEADER: Final = b"x-inferd-team"
TOKEN_HEADER: Final = "x-csrf-token"  # noqa: S105 - the name of a header
PATH: Final = "/playground"


class Playground:
    """The page, and the door of its endpoint."""

    def __init__(
        self,
        site: Site,
        config: Callable[[], Config],
        endpoint: Callable[[Callable[[Scope], Caller]], InferenceEndpoint],
    ) -> None:
        """`endpoint` makes the chat endpoint for callers that the given function tells."""
        self._site = site
        self._config = config
        self._endpoint = endpoint(self._caller)

    def routes(self) -> list[Route]:
        return [
            self._site.route("GET", PATH, self._page),
            Route(f"{ROOT}{PATH}/chat", self._Chat(self), methods=["POST"]),
        ]

    async def _page(self, http: Request, session: Session) -> Response:
        del http
        config = self._config()
        models = [model.name for model in config.models if model.kind == "chat"]
        teams = [team.name for team in config.teams]
        return self._site.page(
            "playground.html", session, title="Playground", models=models, teams=teams
        )

    class _Chat:
        """An ASGI endpoint; a class, for Starlette gives functions a request instead."""

        def __init__(self, playground: Playground) -> None:
            self._playground = playground

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._playground._endpoint(scope, receive, send)  # noqa: SLF001 - its own

    def _caller(self, scope: Scope) -> Caller:
        """Raises InvalidKey: no session, or a page that is not ours. InvalidField: no such team."""
        http = Request(scope)
        session = self._site.session(http)
        if session is None or not self._site.owns(session, http.headers.get(TOKEN_HEADER)):
            raise InvalidKey("Log in to the dashboard again: this page's session is over.")
        name = (header(scope["headers"], TEAM_HEADER) or b"").decode("latin-1")
        if name not in {team.name for team in self._config().teams}:
            raise InvalidField("Choose the team that pays for this.", param="team")
        return Caller(team=name, key_id=KEY_ID, models=None)
