"""What the pages show. Reads every owner to inform; changes nothing.

Long lists are cut at `ROWS_SHOWN` and say so; single requests are found by their id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from markupsafe import Markup

from inferd.api import bill_admin
from inferd.clock import utc_now_us
from inferd.config.schema import Targets
from inferd.dashboard.plots import Line, plot
from inferd.errors import InvalidField, NotFound
from inferd.storage import audit, notable
from inferd.storage.rollup import HourFilter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from inferd.api.key_admin import KeyAdmin
    from inferd.api.node_admin import NodeAdmin
    from inferd.api.refusals import Refusals
    from inferd.config.schema import Config
    from inferd.dashboard.history import History
    from inferd.dashboard.session import Session
    from inferd.dashboard.site import Site
    from inferd.quota.budgets import Budgets
    from inferd.storage.database import Database

ROWS_SHOWN: Final = 50
SLOWEST_OF_S: Final = 3_600
DAYS_MAX: Final = 366
DAY_US: Final = 86_400_000_000
USAGE_BY: Final = ("team", "model", "version", "key", "day", "priority")


class Node(Protocol):
    """The composition root, as far as the pages need it."""

    db: Database
    budgets: Budgets
    refusals: Refusals

    @property
    def config(self) -> Config: ...


class Pages:
    """The handlers. `routes` is the table of paths."""

    def __init__(
        self, site: Site, node: Node, admin: NodeAdmin, keys: KeyAdmin, history: History
    ) -> None:
        self._site = site
        self._node = node
        self._admin = admin
        self._keys = keys
        self._history = history

    def routes(self) -> list[Route]:
        route = self._site.route
        return [
            route("GET", "", self._overview),
            route("GET", "/live", self._live),
            route("GET", "/usage", self._usage),
            route("GET", "/requests", self._requests),
            route("GET", "/requests/{id}", self._request),
            route("GET", "/keys", self._key_list),
            route("GET", "/audit", self._audit),
        ]

    async def _overview(self, http: Request, session: Session) -> Response:
        del http
        return self._site.page("overview.html", session, title="Overview", **self._present())

    async def _live(self, http: Request, session: Session) -> Response:
        """The part of the overview that is renewed while it is looked at."""
        del http
        return self._site.page("live.html", session, **self._present())

    def _present(self) -> dict[str, Any]:
        status = self._admin.status()
        targets = {model.name: model.targets for model in self._node.config.models}
        for pool in status["pools"]:
            pool["plots"] = self._plots(pool["pool"], targets.get(pool["model"]))
        return {"status": status, "at": utc_now_us()}

    def _plots(self, pool: str, targets: Targets | None) -> list[dict[str, Any]]:
        samples = self._history.of(pool)
        ttft_s = targets.ttft_ms / 1_000 if targets else None
        tpot_s = targets.tpot_ms / 1_000 if targets else None
        drawn = (
            ("TTFT", "s", ttft_s, "ttft_p50_s", "p50", "ttft_p95_s", "p95"),
            ("Time per output token", "ms", tpot_s, "tpot_p50_s", "p50", "tpot_p95_s", "p95"),
            ("Requests", "", None, "running", "running", "waiting_interactive", "waiting"),
            ("KV cache", "%", 1.0, "kv_utilization", "used", None, None),
        )
        plots = []
        for title, unit, limit, first, first_name, second, second_name in drawn:
            lines = [Line(first_name, [getattr(sample, first) for sample in samples])]
            if second is not None and second_name is not None:
                lines.append(Line(second_name, [getattr(sample, second) for sample in samples]))
            picture = Markup(plot(title, lines, unit, limit))  # noqa: S704 - made of numbers
            plots.append({"title": title, "unit": unit, "lines": lines, "picture": picture})
        return plots

    async def _usage(self, http: Request, session: Session) -> Response:
        by = http.query_params.get("by", "team")
        days = _days(http)
        if by not in USAGE_BY:
            raise InvalidField(f"Nothing is summed by that: choose one of {', '.join(USAGE_BY)}.")
        now_us = utc_now_us()
        where = HourFilter(since_us=now_us - days * DAY_US)
        currency = self._node.config.billing.currency
        dimensions = bill_admin.dimensions(by)
        usage = await bill_admin.usage_of(self._node.db, where, dimensions, currency)
        groups = usage["groups"]
        groups.sort(key=lambda group: -group["cost_pico"] or -group["completion_tokens"])
        return self._site.page(
            "usage.html",
            session,
            title="Usage",
            usage=usage,
            groups=groups[:ROWS_SHOWN],
            left_off=max(0, len(groups) - ROWS_SHOWN),
            column=dimensions[0],
            by=by,
            choices=USAGE_BY,
            days=days,
            budgets=self._node.budgets.snapshot(now_us),
        )

    async def _requests(self, http: Request, session: Session) -> Response:
        since_us = utc_now_us() - SLOWEST_OF_S * 1_000_000
        wanted = http.query_params.get("id", "").strip()
        if wanted:
            return await self._show_request(wanted, session)
        return self._site.page(
            "requests.html",
            session,
            title="Requests",
            slowest=await notable.slowest(self._node.db, since_us, ROWS_SHOWN),
            refused=await notable.unserved(self._node.db, since_us, ROWS_SHOWN),
            turned_away=self._node.refusals.newest(ROWS_SHOWN),
        )

    async def _request(self, http: Request, session: Session) -> Response:
        return await self._show_request(http.path_params["id"], session)

    async def _show_request(self, request_id: str, session: Session) -> Response:
        """One request's life; by its x-request-id or its response's id. Raises NotFound."""
        try:
            life = await bill_admin.life_of(self._node.db, request_id)
        except NotFound:
            refused = self._node.refusals.find(request_id)
            if refused is None:
                raise
            return self._site.page("refused.html", session, title="Request", refused=refused)
        currency = self._node.config.billing.currency
        return self._site.page(
            "request.html", session, title="Request", life=life, currency=currency
        )

    async def _key_list(self, http: Request, session: Session) -> Response:
        del http
        keys = await self._keys.keys()
        return self._site.page("keys.html", session, title="Keys", keys=keys)

    async def _audit(self, http: Request, session: Session) -> Response:
        del http
        actions = await audit.actions(self._node.db, 0, ROWS_SHOWN)
        return self._site.page("audit.html", session, title="Audit", actions=actions)


def _days(http: Request) -> int:
    text = http.query_params.get("days", "7")
    if not text.isdecimal() or not 1 <= int(text[:4]) <= DAYS_MAX:
        raise InvalidField(f"Invalid 'days': a number from 1 to {DAYS_MAX}.", param="days")
    return int(text)
