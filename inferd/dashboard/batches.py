"""The batches of all teams, as an admin sees them, and how one of them is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from inferd.errors import NotFound
from inferd.storage import batches

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from inferd.batch.runner import Runner
    from inferd.dashboard.session import Session
    from inferd.dashboard.site import Site
    from inferd.storage.database import Database

ROWS_SHOWN: Final = 50


class Node(Protocol):
    """The composition root, as far as batches go."""

    db: Database
    batches: Runner


class Batches:
    """The page, and the deed behind one of its actions."""

    def __init__(self, site: Site, node: Node) -> None:
        self._site = site
        self._node = node

    def routes(self) -> list[Route]:
        return [self._site.route("GET", "/batches", self._list)]

    async def cancel(self, batch_id: str) -> None:
        """Raises NotFound, Conflict."""
        row = await batches.find(self._node.db, batch_id)
        if row is None:
            raise NotFound(f"There is no batch '{batch_id[:80]}'.")
        await self._node.batches.cancel(row)

    async def _list(self, http: Request, session: Session) -> Response:
        del http
        rows = await batches.newest_of_all(self._node.db, ROWS_SHOWN)
        return self._site.page("batches.html", session, title="Batches", batches=rows)
