"""What can be done from the pages: drain, restart, cancel, revoke. Each asks first, on its page.

A GET shows what would happen and to what; only the POST of that page's form does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from inferd.dashboard.site import ROOT

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from inferd.dashboard.session import Session
    from inferd.dashboard.site import Site

_SEE_OTHER: Final = 303

Do = Callable[[str], Awaitable[object]]
"""Does it to what has this id. Raises NotFound, Conflict."""


@dataclass(frozen=True, slots=True)
class Deed:
    """`path` is `/things/{id}/verb`; `warning` says what it does to what `{id}` stands for."""

    path: str
    verb: str
    warning: str
    back: str
    do: Do


class Actions:
    """Two routes each: the question and the deed."""

    def __init__(self, site: Site, deeds: list[Deed]) -> None:
        self._site = site
        self._deeds = deeds

    def routes(self) -> list[Route]:
        return [route for deed in self._deeds for route in self._of(deed)]

    def _of(self, deed: Deed) -> list[Route]:
        async def ask(http: Request, session: Session) -> Response:
            target = http.path_params["id"]
            return self._site.page(
                "confirm.html",
                session,
                title=f"{deed.verb} {target}?",
                action=deed,
                warning=deed.warning.format(id=target),
                here=http.url.path,
            )

        async def do(http: Request, session: Session) -> Response:
            del session
            await deed.do(http.path_params["id"])
            return RedirectResponse(ROOT + deed.back, _SEE_OTHER)

        return [
            self._site.route("GET", deed.path, ask),
            self._site.route("POST", deed.path, do),
        ]
