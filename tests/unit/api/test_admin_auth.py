from __future__ import annotations

import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from inferd.api.admin_auth import AdminAuth, load_or_create_admin_key, read_admin_key
from inferd.errors import AuthError, InvalidKey, MissingKey, StorageError

KEY = "sk-inferd-admin-" + "a" * 43


async def ask(authorization: str | None, path: str = "/admin/v1/keys") -> str:
    """The path that the application behind the door saw."""
    seen: list[str] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        seen.append(scope["path"])

    async def unused(*_: Any) -> Any:
        raise AssertionError

    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    await AdminAuth(app, KEY, {"/healthz"})(scope, unused, unused)
    return seen[0]


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "])
async def test_the_admin_key_opens(authorization: str) -> None:
    assert await ask(authorization) == "/admin/v1/keys"


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        (None, MissingKey),
        ("", MissingKey),
        ("Bearer", MissingKey),
        ("Bearer ", MissingKey),
        (f"Basic {KEY}", MissingKey),
        (KEY, MissingKey),
        (f"Bearer {KEY}x", InvalidKey),
        (f"Bearer {KEY[:-1]}", InvalidKey),
        ("Bearer sk-inferd-" + "a" * 43, InvalidKey),
        ("Bearer schlüssel", InvalidKey),
    ],
)
async def test_nothing_else_does(authorization: str | None, error: type[AuthError]) -> None:
    with pytest.raises(error, match=r"admin\.key"):
        await ask(authorization)


async def test_open_paths_need_no_key() -> None:
    assert await ask(None, "/healthz") == "/healthz"
    with pytest.raises(MissingKey):
        await ask(None, "/healthz/")


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    key = load_or_create_admin_key(tmp_path)
    assert load_or_create_admin_key(tmp_path) == key == read_admin_key(tmp_path)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_or_create_admin_key(tmp_path)
    (tmp_path / "admin.key").chmod(0o640)
    with pytest.raises(StorageError, match=r"may be read by others \(mode 0640\).*chmod 600"):
        load_or_create_admin_key(tmp_path)


@pytest.mark.parametrize("content", ["", "password", KEY + "\n" + KEY, "\x00" * 59])
def test_a_damaged_key_file_is_told_not_used(tmp_path: Path, content: str) -> None:
    (tmp_path / "admin.key").write_text(content)
    (tmp_path / "admin.key").chmod(0o600)
    with pytest.raises(StorageError, match=r"holds no admin key\. Delete it"):
        load_or_create_admin_key(tmp_path)


def test_a_missing_folder_or_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"absent/admin\.key"):
        load_or_create_admin_key(tmp_path / "absent")
    with pytest.raises(StorageError, match=r"admin\.key"):
        read_admin_key(tmp_path)
