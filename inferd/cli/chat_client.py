"""A chat's side of the public API: which models there are, and one streamed answer at a time.

Owns the HTTP session of one question. Every failure is an `ApiError` that can be shown as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from inferd import clock
from inferd.cli.event_reader import EventReader
from inferd.cli.hello import command_name
from inferd.errors import InferdError

CONNECT_S = 5.0
SILENCE_S_MAX = 120.0
"""inferd sends a comment every 15 s while an answer is on its way."""
ERROR_BYTES_MAX = 1_048_576
LOOK_S = 0.5
"""Between two looks at a model that is still loading."""
UNAVAILABLE_S_MAX = 15.0
"""A worker that has failed is restarted; longer without one, somebody must look."""
NO_WORKER = "no_worker"
OK = 200


class ApiError(InferdError):
    """The API refused, failed, or is not there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None


class ChatClient:
    """Calls of one base URL with one key; made by `connected`."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url

    async def model_when_ready(self, name: str | None, tell: Callable[[str], None]) -> str:
        """The model to ask - `name`, else the first that is ready - once a worker is ready.

        `tell` is given what is waited for. Raises ApiError if none comes.
        """
        unavailable_since: float | None = None
        told = ""
        while True:
            model = await self._model(name)
            state = model.get("state", "ready")  # another server than inferd says nothing
            if state == "ready":
                return str(model["id"])
            now = clock.monotonic()
            if state == "loading":
                unavailable_since = None
            elif unavailable_since is None:
                unavailable_since = now
            elif now - unavailable_since > UNAVAILABLE_S_MAX:
                raise ApiError(
                    f"No worker of {model['id']} is there to answer. `inferd status` tells why."
                )
            if state != told:
                tell(f"{model['id']} is {state}; waiting for it (Ctrl-C stops waiting) ...")
                told = state
            await asyncio.sleep(LOOK_S)

    async def answer(self, request: dict[str, Any]) -> AsyncIterator[Piece]:
        """Stream one answer. Raises ApiError, also half-way."""
        body = {**request, "stream": True, "stream_options": {"include_usage": True}}
        with told(self._base_url):
            async with self._session.post(
                f"{self._base_url}/chat/completions",
                data=orjson.dumps(body),
                headers={"content-type": "application/json"},
            ) as response:
                if response.status != OK:
                    raise refused(response, await response.content.read(ERROR_BYTES_MAX))
                reader = EventReader()
                async for data in response.content.iter_any():
                    for event in reader.feed(data):
                        if event.startswith("[DONE]"):
                            return
                        yield _piece(event)
        raise ApiError("The answer broke off before its end. Ask again.")

    async def _model(self, name: str | None) -> dict[str, Any]:
        if name is not None:
            path = f"models/{quote(name, safe='/@')}"
            return await asked(self._session, "GET", self._base_url, path)
        found = await asked(self._session, "GET", self._base_url, "models")
        models: list[dict[str, Any]] = found["data"]
        if not models:
            raise ApiError("This key may use no model. `inferd teams list` shows who may use what.")
        states = [model.get("state", "ready") for model in models]
        best = next((state for state in ("ready", "loading") if state in states), states[0])
        return models[states.index(best)]


async def asked(
    session: aiohttp.ClientSession,
    method: str,
    base_url: str,
    path: str,
    **more: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """The object that one call of the API answers. Raises ApiError."""
    with told(base_url):
        async with session.request(method, f"{base_url}/{path}", **more) as response:
            body = await response.read()
            if response.status != OK:
                raise refused(response, body)
            value = orjson.loads(body)
            if not isinstance(value, dict):
                raise TypeError
            return value


@contextmanager
def told(base_url: str) -> Iterator[None]:
    """Around calls of the API there: every failure becomes an ApiError."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or str(error)
        raise ApiError(
            f"Nothing answers at {base_url} ({reason}). Start it: {command_name()} serve;"
            " or give --base-url."
        ) from error
    except TimeoutError as error:
        raise ApiError(
            f"{base_url} has sent nothing for {SILENCE_S_MAX:.0f} s. Ask again."
        ) from error
    except aiohttp.InvalidURL as error:
        raise ApiError(f"{base_url} is no URL; --base-url wants http://host:port/v1") from error
    except aiohttp.ClientError as error:
        raise ApiError(f"The connection broke off ({error}). Ask again.") from error
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise ApiError(
            f"What answers at {base_url} is no OpenAI-compatible API: give --base-url."
        ) from error


@asynccontextmanager
async def connected(base_url: str, key: str) -> AsyncIterator[ChatClient]:
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=SILENCE_S_MAX)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        yield ChatClient(session, base_url)


def _piece(event: str) -> Piece:
    chunk = orjson.loads(event)
    if error := chunk.get("error"):
        raise ApiError(f"The answer broke off: {_message(error)}", code=_code(error))
    usage = chunk.get("usage") or {}
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return Piece(
        text=delta.get("content") or "",
        reasoning=delta.get("reasoning_content") or "",
        finish_reason=choices[0].get("finish_reason"),
        completion_tokens=usage.get("completion_tokens"),
    )


def refused(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    """The API's own words, and when to try again if it says so."""
    try:
        error = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        error = f"The server answered HTTP {response.status} without a reason."
    message = _message(error)
    if response.status == 401:  # noqa: PLR2004
        message += " `inferd keys create --team TEAM` makes a key."
    wait = response.headers.get("retry-after", "")
    if wait.isdigit() and _code(error) != NO_WORKER:
        message += f" Try again in {wait} s."
    return ApiError(message, code=_code(error))


def _message(error: object) -> str:
    return str(error.get("message")) if isinstance(error, dict) else str(error)


def _code(error: object) -> str | None:
    return error.get("code") if isinstance(error, dict) else None
