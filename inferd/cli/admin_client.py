"""The command line's side of the admin API of a running server.

Owns the HTTP session of one command. Has the methods of `api.key_admin.KeyAdmin`, so that a
command is the same with and without a server.
"""

from __future__ import annotations

import getpass
import os
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from inferd.api.admin_auth import KEY_FILE, read_admin_key
from inferd.config.address import parse_address
from inferd.errors import InferdError

Answer = dict[str, Any]

CONNECT_S = 2.0
ANSWER_S = 30.0
ANSWER_BYTES_MAX = 67_108_864


class AdminError(InferdError):
    """The running server cannot be reached, or it refused what was asked."""


class AdminClient:
    """Calls of one server's admin API; made by `connect`."""

    def __init__(self, session: aiohttp.ClientSession, address: str, key_path: Path) -> None:
        self._session = session
        self._address = address
        self._key_path = key_path

    async def teams(self) -> list[Answer]:
        return _data(await self.call("GET", "teams"))

    async def team(self, name: str) -> Answer:
        return await self.call("GET", f"teams/{quote(name, safe='')}")

    async def keys(self, team: str | None = None) -> list[Answer]:
        suffix = "" if team is None else f"?team={quote(team, safe='')}"
        return _data(await self.call("GET", f"keys{suffix}"))

    async def create(
        self,
        team: str,
        name: str = "",
        expires_s: float | None = None,
        models: Sequence[str] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> Answer:
        body = {
            "team": team,
            "name": name,
            "expires_s": expires_s,
            "models": models,
            "limits": limits,
        }
        return await self.call("POST", "keys", body)

    async def rotate(self, key_id: str, grace_s: float = 0.0) -> Answer:
        return await self.call(
            "POST", f"keys/{quote(key_id, safe='')}/rotate", {"grace_s": grace_s}
        )

    async def revoke(self, key_id: str) -> Answer:
        return await self.call("POST", f"keys/{quote(key_id, safe='')}/revoke")

    async def verify(self, secret: str) -> Answer | None:
        answer = await self.call("POST", "keys/verify", {"secret": secret})
        key: Answer | None = answer["key"]
        return key

    async def call(self, method: str, path: str, body: Answer | None = None) -> Answer:
        """One request below /admin/v1. Raises AdminError, whose message can be shown as it is."""
        with self._told():
            async with self._session.request(
                method,
                f"/admin/v1/{path}",
                data=None if body is None else orjson.dumps(body),
                headers={"content-type": "application/json"},
                allow_redirects=False,
            ) as response:
                return self._answer(response.status, await _whole(response))

    async def metrics(self) -> str:
        """The server's metrics in Prometheus' text format. Raises AdminError."""
        with self._told():
            async with self._session.get("/metrics", allow_redirects=False) as response:
                body = await _whole(response)
                if response.status != 200:  # noqa: PLR2004
                    self._answer(response.status, body)
                return body.decode("utf-8", "replace")

    async def output(self, worker: str, *, lines: int, follow: bool) -> AsyncGenerator[str]:
        """A worker's last lines of output, in pieces as they come. Raises AdminError."""
        path = f"workers/{quote(worker, safe='')}/output?lines={lines}&follow={int(follow)}"
        decode = getincrementaldecoder("utf-8")("replace").decode
        with self._told():
            async with self._session.get(
                f"/admin/v1/{path}",
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S),
            ) as response:
                if response.status != 200:  # noqa: PLR2004
                    self._answer(response.status, await _whole(response))
                async for piece in response.content.iter_any():
                    yield decode(piece)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of aiohttp as ours."""
        try:
            yield
        except aiohttp.ClientConnectorError as error:
            raise AdminError(
                f"inferd runs, but its admin API does not answer at http://{self._address} "
                f"({error.os_error.strerror or error}). It may be starting or stopping; if not, "
                "[server].admin_listen in inferd.toml is not the one it was started with."
            ) from error
        except TimeoutError as error:
            raise AdminError(
                f"The admin API at http://{self._address} did not answer within {ANSWER_S:.0f} s; "
                "see the server's log."
            ) from error
        except aiohttp.ClientError as error:
            raise AdminError(
                f"The admin API at http://{self._address} broke off: {error}. Try again."
            ) from error

    def _answer(self, status: int, raw: bytes) -> Answer:
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError:
            answer = None
        if isinstance(answer, dict) and status < 400:  # noqa: PLR2004
            return answer
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            raise AdminError(
                f"What answers at http://{self._address} is not inferd's admin API (HTTP {status}):"
                " another program has the port of [server].admin_listen."
            )
        if status == 401:  # noqa: PLR2004
            raise AdminError(
                f"The server at http://{self._address} does not take the key of {self._key_path}. "
                "Either another inferd listens there (see [server].admin_listen and state_dir), or "
                "the file was replaced: then restart inferd."
            )
        raise AdminError(str(error.get("message")), code=error.get("code"))


@asynccontextmanager
async def connect(address: str, state_dir: Path) -> AsyncIterator[AdminClient]:
    """A client for the server at `address:port`, with the admin key of its state folder.

    Raises StorageError if that key cannot be read.
    """
    key = read_admin_key(state_dir)
    target = _reachable(address)
    timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(
        f"http://{target}",
        headers={
            "authorization": f"Bearer {key}",
            "accept": "application/json",
            "x-inferd-actor": actor(),
        },
        timeout=timeout,
        trust_env=False,
    ) as session:
        yield AdminClient(session, target, state_dir / KEY_FILE)


def actor() -> str:
    """Who runs this command, for the audit log: what the system says, else a number."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = str(os.getuid())
    return name.encode("ascii", "replace").decode()


def _reachable(address: str) -> str:
    return str(parse_address(address).reachable)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body, cut off at `ANSWER_BYTES_MAX`: one read gives no more than has come so far."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) >= ANSWER_BYTES_MAX:
            break
    return bytes(body)


def _data(answer: Answer) -> list[Any]:
    data: list[Any] = answer["data"]
    return data
