"""A file that holds one secret, for its owner alone. Owns how it is checked and replaced."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferd.api.key_admin import Answer
from inferd.cli.admin_access import Admin
from inferd.errors import StorageError
from inferd.quota.keys import SECRET_START

_BYTES_MAX = 4_096


class KeyFile:
    """The secret at `path`. It is replaced whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ensure(self, admin: Admin, team: str, name: str) -> tuple[Answer, bool]:
        """The key of `team` in the file, and whether it had to be made.

        Raises StorageError if the file holds something else, or cannot be written: then no key is
        left behind.
        """
        key = await self._current(admin, team)
        if key is not None:
            return key, False
        with self._told():
            unfinished = self._open_unfinished()
        try:
            key = await admin.create(team, name)
            try:
                with self._told():
                    _write(unfinished, key.pop("secret"))
                    unfinished.replace(self._path)
            except StorageError:
                await admin.revoke(key["id"])
                raise
        finally:
            unfinished.unlink(missing_ok=True)
        return key, True

    async def _current(self, admin: Admin, team: str) -> Answer | None:
        with self._told():
            secret = self._read()
        if not secret:
            return None
        if not secret.startswith(SECRET_START) or len(secret.split()) != 1:
            raise StorageError(
                f"{self._path} holds something that is no key of inferd, and it is left as it is. "
                "Name another file."
            )
        key = await admin.verify(secret)
        if key is not None and key["team"] != team:
            raise StorageError(
                f"{self._path} holds a working key of team '{key['team']}', not of '{team}'. Name "
                "another file, or delete it first."
            )
        return key

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(_BYTES_MAX).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._path}: {error.strerror}. Name a file in a folder where you may write."
            ) from error

    def _open_unfinished(self) -> Path:
        """An empty private file beside the real one: if that works, the rest will."""
        unfinished = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return unfinished


def _write(path: Path, secret: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
