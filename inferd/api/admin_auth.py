"""The admin's own key: made at first start, kept in `admin.key` readable by its owner alone.

Owns that file and the check at the door of the second listener. Keys of teams are worth nothing
here, and this key nothing at the public API.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Collection
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.api.headers import header
from inferd.errors import InvalidKey, MissingKey, StorageError
from inferd.storage.transaction import translated

KEY_FILE = "admin.key"
_KEY = re.compile(r"sk-inferd-admin-[A-Za-z0-9_-]{43}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class AdminAuth:
    """ASGI middleware: lets a request pass that carries the admin key, or asks for an open path.

    Raises MissingKey or InvalidKey, which the layer outside it renders.
    """

    def __init__(self, app: ASGIApp, admin_key: str, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._admin_key = admin_key.encode()
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            self._check(header(scope["headers"], b"authorization") or b"")
        await self._app(scope, receive, send)

    def _check(self, authorization: bytes) -> None:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise MissingKey(
                f"The admin API needs the key of {KEY_FILE} in [server].state_dir, as "
                "'Authorization: Bearer KEY'."
            )
        if not hmac.compare_digest(key.strip(), self._admin_key):
            raise InvalidKey(f"This is not the admin key; it is in {KEY_FILE} of this server.")


def load_or_create_admin_key(state_dir: Path) -> str:
    """The admin key of this state folder, which exists; made if there is none yet.

    Raises StorageError if the file is unusable or others may read it.
    """
    path = state_dir / KEY_FILE
    with translated(str(path)):
        if not path.exists():
            _create(path, "sk-inferd-admin-" + secrets.token_urlsafe(32))
    return read_admin_key(state_dir)


def read_admin_key(state_dir: Path) -> str:
    """Raises StorageError if there is none, it is damaged, or others may read it."""
    path = state_dir / KEY_FILE
    with translated(str(path)):
        mode = path.stat().st_mode
        key = path.read_text(encoding="ascii", errors="replace").strip()
    if mode & _OTHERS:
        raise StorageError(
            f"{path} may be read by others (mode {stat.S_IMODE(mode):04o}): whoever has it "
            f"controls inferd. Delete it and restart inferd for a new one, or `chmod 600 {path}`."
        )
    if not _KEY.fullmatch(key):
        raise StorageError(
            f"{path} holds no admin key. Delete it and restart inferd: a new one is made."
        )
    return key


def _create(path: Path, key: str) -> None:
    """The file appears whole or not at all, and never replaces another one's."""
    unfinished = path.with_suffix(f".{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)
    finally:
        unfinished.unlink()
