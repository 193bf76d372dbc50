"""The admin API: /admin/v1 on the second listener, behind `AdminAuth`. JSON in, JSON out.

Owns nothing: handlers read the request, ask the owner and answer. Lists are
`{"object": "list", "data": [...]}`; errors have the public API's envelope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inferd.api.audit import TARGET_KEY
from inferd.api.fields import (
    as_array,
    as_object,
    integer,
    missing,
    number,
    only_keys,
    shown,
    string,
    text,
    unknown,
)
from inferd.api.key_admin import Answer, KeyAdmin
from inferd.api.parsed import not_an_object
from inferd.api.read_body import read_body
from inferd.config.limits import (
    BURST_REQUESTS_MAX,
    BURST_TOKENS_MAX,
    REQUESTS_PER_S_MAX,
    REQUESTS_PER_S_MIN,
    TOKENS_PER_S_MAX,
)
from inferd.errors import InvalidBody
from inferd.quota.keys import GRACE_S_MAX, LIFE_S_MAX

BODY_BYTES_MAX: Final = 65_536
BODY_TIMEOUT_S: Final = 10.0
MODELS_MAX: Final = 256
NAME_CHARS_MAX: Final = 128

Handler = Callable[[Request], Awaitable[object]]
"""What it returns is sent as JSON; what it raises, the listener's outermost layer renders."""
Fields = Mapping[str, Callable[[Any, str], Any]]
"""What a body may hold: a check for each field."""

_name = text(NAME_CHARS_MAX)


def _models(value: object, path: str) -> list[str]:
    names = as_array(value, path, MODELS_MAX)
    return [_name(name, f"{path}[{at}]") for at, name in enumerate(names)]


_LIMITS: Final[Fields] = {
    "tokens_per_s": integer(1, TOKENS_PER_S_MAX),
    "burst_tokens": integer(1, BURST_TOKENS_MAX),
    "requests_per_s": number(REQUESTS_PER_S_MIN, REQUESTS_PER_S_MAX),
    "burst_requests": integer(1, BURST_REQUESTS_MAX),
}


def _limits(value: object, path: str) -> dict[str, float]:
    given = as_object(value, path)
    only_keys(given, path, frozenset(_LIMITS))
    return {key: _LIMITS[key](one, f"{path}.{key}") for key, one in given.items()}


_CREATE: Final[Fields] = {
    "team": _name,
    "name": string(NAME_CHARS_MAX),
    "expires_s": number(1, LIFE_S_MAX),
    "models": _models,
    "limits": _limits,
}
_ROTATE: Final[Fields] = {"grace_s": number(0, GRACE_S_MAX)}
_VERIFY: Final[Fields] = {"secret": _name}


class AdminApi:
    """The handlers. `routes` is the table of paths."""

    def __init__(self, keys: KeyAdmin) -> None:
        self._keys = keys

    def routes(self) -> list[Route]:
        return [
            json_route("GET", "/admin/v1/teams", self._teams),
            json_route("GET", "/admin/v1/teams/{name}", self._team),
            json_route("GET", "/admin/v1/keys", self._list_keys),
            json_route("POST", "/admin/v1/keys", self._create_key),
            json_route("POST", "/admin/v1/keys/verify", self._verify_key),
            json_route("POST", "/admin/v1/keys/{id}/rotate", self._rotate_key),
            json_route("POST", "/admin/v1/keys/{id}/revoke", self._revoke_key),
        ]

    async def _teams(self, _: Request) -> Answer:
        return _list(await self._keys.teams())

    async def _team(self, http: Request) -> Answer:
        return await self._keys.team(http.path_params["name"])

    async def _list_keys(self, http: Request) -> Answer:
        return _list(await self._keys.keys(http.query_params.get("team")))

    async def _create_key(self, http: Request) -> Answer:
        fields = await body_fields(http, _CREATE)
        if "team" not in fields:
            raise missing("team")
        key = await self._keys.create(**fields)
        http.scope[TARGET_KEY] = f"{key['id']} of team {key['team']}"
        return key

    async def _verify_key(self, http: Request) -> Answer:
        fields = await body_fields(http, _VERIFY)
        if "secret" not in fields:
            raise missing("secret")
        key = await self._keys.verify(fields["secret"])
        return {"object": "key.verification", "valid": key is not None, "key": key}

    async def _rotate_key(self, http: Request) -> Answer:
        fields = await body_fields(http, _ROTATE)
        return await self._keys.rotate(http.path_params["id"], **fields)

    async def _revoke_key(self, http: Request) -> Answer:
        await body_fields(http, {})
        return await self._keys.revoke(http.path_params["id"])


def _list(data: list[Answer]) -> Answer:
    return {"object": "list", "data": data}


def json_route(method: str, path: str, handler: Handler) -> Route:
    """A route whose handler returns what is sent as JSON."""

    async def answer(http: Request) -> Response:
        return Response(orjson.dumps(await handler(http)), media_type="application/json")

    return Route(path, answer, methods=[method])


async def body_fields(http: Request, fields: Fields) -> dict[str, Any]:
    """The checked fields of a JSON object; no body is an empty one, null is absent.

    Raises:
        RequestError: naming the field.
        ClientGoneError: the client left before the end of its body.
    """
    if http.headers.get("content-length", "0") == "0" and "transfer-encoding" not in http.headers:
        return {}
    raw = await read_body(
        http.receive, http.scope["headers"], bytes_max=BODY_BYTES_MAX, timeout_s=BODY_TIMEOUT_S
    )
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(given, dict):
        raise not_an_object(given)
    for name in given:
        if name not in fields:
            raise unknown(shown(name))
    return {name: fields[name](value, name) for name, value in given.items() if value is not None}
