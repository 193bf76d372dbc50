"""The dashboard's door: login, session, security headers, error pages. ASGI, under /dashboard.

Owns nothing of the node. Every page needs a session; every POST needs its token back. Nothing is
fetched from elsewhere: the content security policy allows this origin alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from inferd import __version__
from inferd.clock import utc_now_us
from inferd.dashboard.form import form_of
from inferd.dashboard.session import COOKIE, SESSION_S, Session, Sessions
from inferd.dashboard.view import FILTERS
from inferd.errors import InferdError, NotFound

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ROOT: Final = "/dashboard"
LOGIN: Final = f"{ROOT}/login"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
}
_STATIC: Final = {"style.css": "text/css", "dashboard.js": "text/javascript"}
_SEE_OTHER: Final = 303
_FORBIDDEN: Final = 403
_TOKEN_HEADER: Final = "x-csrf-token"  # noqa: S105 - the name of a header

Handler = Callable[[Request, Session], Awaitable[Response]]


class Site:
    """Wraps the handlers of pages and actions. `route` makes each of their routes."""

    def __init__(self, admin_key: str) -> None:
        self._sessions = Sessions(admin_key)
        self._templates = Environment(
            loader=PackageLoader("inferd.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._templates.globals.update(root=ROOT, version=__version__)
        static = files("inferd.dashboard") / "static"
        self._static = {name: (static / name).read_bytes() for name in _STATIC}

    def app(self, routes: list[Route]) -> ASGIApp:
        """All of it, with the login's own routes."""
        own = [
            Route(LOGIN, self._login_page, methods=["GET"]),
            Route(LOGIN, self._login, methods=["POST"]),
            Route(f"{ROOT}/static/{{name}}", self._file, methods=["GET"]),
            self.route("POST", "/logout", self._logout),
        ]
        return Router([*own, *routes], redirect_slashes=False)

    def route(self, method: str, path: str, handler: Handler) -> Route:
        """A page or an action: for those who are logged in, and whose forms are our own."""

        async def guarded(http: Request) -> Response:
            session = self.session(http)
            if session is None:
                return RedirectResponse(LOGIN, _SEE_OTHER)
            if method == "POST" and not await self._is_own_form(http, session):
                return self.error_page(http, session, _FORBIDDEN, _STALE_FORM)
            try:
                return await handler(http, session)
            except InferdError as error:
                return self.error_page(http, session, error.status, error.message)

        return Route(ROOT + path, guarded, methods=[method])

    def session(self, http: Request) -> Session | None:
        return self._sessions.find(http.cookies.get(COOKIE), _now_s())

    def owns(self, session: Session, token: str | None) -> bool:
        return self._sessions.holds(session, token)

    def page(
        self, template: str, session: Session | None, status: int = 200, /, **values: object
    ) -> Response:
        """A template with the session's token; what it shows is escaped."""
        html = self._templates.get_template(template).render(session=session, **values)
        return HTMLResponse(html, status, HEADERS)

    def error_page(
        self, http: Request, session: Session | None, status: int, message: str
    ) -> Response:
        del http
        return self.page("error.html", session, status, title="Not done", message=message)

    async def _is_own_form(self, http: Request, session: Session) -> bool:
        token = http.headers.get(_TOKEN_HEADER)
        if token is None:
            token = (await form_of(http)).get("csrf_token")
        return self.owns(session, token)

    async def _login_page(self, http: Request) -> Response:
        if self.session(http) is not None:
            return RedirectResponse(ROOT, _SEE_OTHER)
        return self.page("login.html", None, title="Log in", refused=False)

    async def _login(self, http: Request) -> Response:
        """The admin key for a cookie. Without it, no stranger's page can log anybody in."""
        if not self._sessions.opens((await form_of(http)).get("admin_key", "")):
            return self.page("login.html", None, _FORBIDDEN, title="Log in", refused=True)
        answer = RedirectResponse(ROOT, _SEE_OTHER, HEADERS)
        answer.set_cookie(
            COOKIE,
            self._sessions.cookie(_now_s()),
            max_age=SESSION_S,
            path=ROOT,
            httponly=True,
            samesite="strict",
            secure=http.url.scheme == "https",
        )
        return answer

    async def _logout(self, http: Request, session: Session) -> Response:
        del http, session
        answer = RedirectResponse(LOGIN, _SEE_OTHER, HEADERS)
        answer.delete_cookie(COOKIE, path=ROOT, httponly=True, samesite="strict")
        return answer

    async def _file(self, http: Request) -> Response:
        name = http.path_params["name"]
        if name not in self._static:
            raise NotFound(f"There is no file '{name[:80]}'.")
        headers = {**HEADERS, "cache-control": "max-age=300"}
        return Response(self._static[name], 200, headers, _STATIC[name])


class DashboardOr:
    """ASGI: paths under /dashboard, and / which leads there, go to it; all others onwards."""

    def __init__(self, dashboard: ASGIApp, other: ASGIApp) -> None:
        self._dashboard = dashboard
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/":
            await RedirectResponse(ROOT, _SEE_OTHER)(scope, receive, send)
        elif path == ROOT or path.startswith(ROOT + "/"):
            await self._dashboard(scope, receive, send)
        else:
            await self._other(scope, receive, send)


_STALE_FORM: Final = (
    "This form is not of your present session: nothing was done. Go back, reload the page and try"
    " again."
)


def _now_s() -> float:
    return utc_now_us() / 1_000_000
