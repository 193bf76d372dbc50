from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd import clock
from inferd.errors import Conflict, InvalidField, InvalidKey, NotFound, StorageError
from inferd.quota import keys as keys_module
from inferd.quota.keys import KeyIndex, KeyState, masked
from inferd.storage.database import Cursor, Database
from tests.fakes.inline_database import InlineDatabase
from tests.fakes.running_database import running

TEAMS = ("ads", "search")
HOUR_US = 3_600_000_000


@asynccontextmanager
async def key_index() -> AsyncIterator[tuple[KeyIndex, Database]]:
    async with running(InlineDatabase.open()) as db:
        yield await KeyIndex.load(db, TEAMS), db


def accepted(keys: KeyIndex, secret: str, now_us: int | None = None) -> bool:
    try:
        keys.authenticate(secret, clock.utc_now_us() if now_us is None else now_us)
    except InvalidKey:
        return False
    return True


async def test_a_new_key_works_at_once_and_says_who_has_it() -> None:
    async with key_index() as (keys, _):
        record, secret = await keys.create("search", "ci", frozenset({"small"}), None)
        assert re.fullmatch(r"sk-inferd-[A-Za-z0-9_-]{43}", secret)
        assert record.prefix == secret[:18]
        caller = keys.authenticate(secret, clock.utc_now_us())
        assert (caller.team, caller.key_id) == ("search", record.id)
        assert caller.models == frozenset({"small"})


async def test_keys_survive_a_restart() -> None:
    async with key_index() as (keys, db):
        made = [await keys.create("search", f"k{number}", None, None) for number in range(3)]
        await keys.revoke(made[0][0].id)
        rotated, new_secret = await keys.rotate(made[1][0].id, grace_s=60)
        again = await KeyIndex.load(db, TEAMS)
        assert again.list() == keys.list()
        assert again.get(rotated.id) == rotated
        assert not accepted(again, made[0][1])
        assert accepted(again, made[1][1])
        assert accepted(again, new_secret)
        assert accepted(again, made[2][1])


async def test_all_wrong_keys_get_the_same_answer() -> None:
    async with key_index() as (keys, _):
        now_us = clock.utc_now_us()
        unknown = "sk-inferd-" + "x" * 39 + "abcd"
        _, expired = await keys.create("ads", "", None, now_us + HOUR_US)
        revoked_record, revoked = await keys.create("ads", "", None, None)
        await keys.revoke(revoked_record.id)
        _, homeless = await keys.create("search", "", None, None)
        keys.set_teams(["ads"])
        for secret in (unknown, expired, revoked, homeless):
            with pytest.raises(InvalidKey) as caught:
                keys.authenticate(secret, now_us + HOUR_US)
            assert caught.value.code == "invalid_api_key"
            assert (
                caught.value.message
                == f"Incorrect API key provided: sk-infer********{secret[-4:]}."
            )


async def test_a_key_works_until_its_expiry() -> None:
    async with key_index() as (keys, _):
        expires_us = clock.utc_now_us() + HOUR_US
        record, secret = await keys.create("ads", "", None, expires_us)
        assert accepted(keys, secret, expires_us - 1)
        assert not accepted(keys, secret, expires_us)
        assert keys.state(record, expires_us - 1) is KeyState.ACTIVE
        assert keys.state(record, expires_us) is KeyState.EXPIRED


async def test_a_team_that_comes_back_has_its_keys_again() -> None:
    async with key_index() as (keys, _):
        record, secret = await keys.create("ads", "", None, None)
        keys.set_teams([])
        assert not accepted(keys, secret)
        assert keys.state(record, 0) is KeyState.NO_TEAM
        keys.set_teams(["ads"])
        assert accepted(keys, secret)


async def test_a_rotated_key_keeps_its_identity_and_changes_its_secret() -> None:
    async with key_index() as (keys, _):
        record, old = await keys.create("ads", "ci", frozenset({"small"}), None)
        rotated, new = await keys.rotate(record.id)
        assert (rotated.id, rotated.name, rotated.models) == (record.id, "ci", record.models)
        assert rotated.prefix == new[:18] != record.prefix
        assert not accepted(keys, old)
        assert accepted(keys, new)


async def test_the_old_secret_works_for_its_grace_and_no_longer() -> None:
    async with key_index() as (keys, _):
        record, first = await keys.create("ads", "", None, None)
        rotated, second = await keys.rotate(record.id, grace_s=600)
        until_us = rotated.previous_until_us
        assert until_us is not None
        assert accepted(keys, first, until_us - 1)
        assert not accepted(keys, first, until_us)
        assert accepted(keys, second, until_us)
        _, third = await keys.rotate(record.id, grace_s=600)
        assert [accepted(keys, secret) for secret in (first, second, third)] == [False, True, True]


async def test_a_grace_never_outlives_the_key() -> None:
    async with key_index() as (keys, _):
        expires_us = clock.utc_now_us() + HOUR_US
        record, old = await keys.create("ads", "", None, expires_us)
        await keys.rotate(record.id, grace_s=7_200)
        assert not accepted(keys, old, expires_us)


async def test_revoking_refuses_every_secret_before_anything_is_written() -> None:
    async with key_index() as (keys, _):
        record, old = await keys.create("ads", "", None, None)
        _, new = await keys.rotate(record.id, grace_s=600)
        async with asyncio.TaskGroup() as group:
            group.create_task(keys.revoke(record.id))
            await asyncio.sleep(0)
            assert not accepted(keys, old)
            assert not accepted(keys, new)


async def test_revoking_twice_keeps_the_first_time() -> None:
    async with key_index() as (keys, db):
        record, _ = await keys.create("ads", "", None, None)
        first = await keys.revoke(record.id)
        assert await keys.revoke(record.id) == first
        assert (await KeyIndex.load(db, TEAMS)).get(record.id) == first


async def test_of_two_rotations_at_once_one_wins_and_the_other_is_told() -> None:
    async with key_index() as (keys, db):
        record, _ = await keys.create("ads", "", None, None)

        async def rotate() -> str | None:
            try:
                return (await keys.rotate(record.id))[1]
            except Conflict:
                return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(rotate()) for _ in range(3)]
        secrets = [task.result() for task in tasks]
        (winner,) = [secret for secret in secrets if secret is not None]
        assert accepted(keys, winner)
        assert accepted(await KeyIndex.load(db, TEAMS), winner)


@pytest.mark.parametrize("revoke_first", [True, False])
async def test_a_revocation_during_a_rotation_stays_in_force(revoke_first: bool) -> None:
    async with key_index() as (keys, db):
        record, old = await keys.create("ads", "", None, None)
        secrets = [old]

        async def rotate() -> None:
            try:
                secrets.append((await keys.rotate(record.id, grace_s=600))[1])
            except Conflict:
                assert revoke_first

        actions = [rotate(), keys.revoke(record.id)]
        async with asyncio.TaskGroup() as group:
            for action in reversed(actions) if revoke_first else actions:
                group.create_task(action)
        for index in (keys, await KeyIndex.load(db, TEAMS)):
            assert index.state(index.get(record.id), 0) is KeyState.REVOKED
            assert not any(accepted(index, secret) for secret in secrets)


async def test_memory_follows_the_disk_when_the_admin_leaves_in_the_middle() -> None:
    async with key_index() as (keys, db):
        record, old = await keys.create("ads", "", None, None)
        async with asyncio.TaskGroup() as group:
            leaving = [
                group.create_task(keys.rotate(record.id)),
                group.create_task(keys.create("ads", "late", None, None)),
            ]
            await asyncio.sleep(0)
            for task in leaving:
                task.cancel()
        await db.flush()
        assert keys.list() == (await KeyIndex.load(db, TEAMS)).list()
        assert len(keys.list()) == 2
        assert not accepted(keys, old)


async def test_a_revocation_that_cannot_be_stored_is_in_force_and_says_how_long() -> None:
    async with key_index() as (keys, db):
        record, secret = await keys.create("ads", "", None, None)
        db._failed = StorageError("the disk is full")
        with pytest.raises(StorageError, match=r"only until inferd restarts.*the disk is full"):
            await keys.revoke(record.id)
        assert not accepted(keys, secret)
        db._failed = None
        await keys.revoke(record.id)
        assert not accepted(await KeyIndex.load(db, TEAMS), secret)


async def test_a_key_that_cannot_be_stored_does_not_work() -> None:
    async with key_index() as (keys, db):
        db._failed = StorageError("the disk is full")
        with pytest.raises(StorageError):
            await keys.create("ads", "", None, None)
        assert keys.list() == []
        db._failed = None


@pytest.mark.parametrize(
    ("team", "name", "expires_in_us", "message"),
    [
        ("adds", "", None, "no team 'adds' in inferd.toml. Teams: ads, search."),
        ("system", "", None, "no team 'system'"),
        ("ads", "x" * 65, None, "'name'"),
        ("ads", "two\nlines", None, "'name'"),
        ("ads", "", -1, "'expires'"),
        ("ads", "", 101 * 365 * 24 * HOUR_US, "'expires'"),
    ],
)
async def test_a_wrong_new_key_is_refused_by_name(
    team: str, name: str, expires_in_us: int | None, message: str
) -> None:
    async with key_index() as (keys, _):
        expires_us = None if expires_in_us is None else clock.utc_now_us() + expires_in_us
        with pytest.raises(InvalidField, match=re.escape(message)):
            await keys.create(team, name, None, expires_us)
        assert keys.list() == []


async def test_usable_keys_of_a_team_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "KEYS_PER_TEAM_MAX", 2)
    async with key_index() as (keys, _):
        record, _ = await keys.create("ads", "", None, None)
        await keys.create("ads", "", None, None)
        with pytest.raises(Conflict, match="Team 'ads' has 2 usable keys"):
            await keys.create("ads", "", None, None)
        await keys.create("search", "", None, None)
        await keys.revoke(record.id)
        await keys.create("ads", "", None, None)


async def test_a_key_that_is_over_cannot_be_rotated() -> None:
    async with key_index() as (keys, _):
        record, _ = await keys.create("ads", "", None, None)
        await keys.revoke(record.id)
        with pytest.raises(Conflict, match="it is revoked"):
            await keys.rotate(record.id)
        homeless, _ = await keys.create("search", "", None, None)
        keys.set_teams(["ads"])
        with pytest.raises(Conflict, match="of a team that is gone"):
            await keys.rotate(homeless.id)
        with pytest.raises(InvalidField, match="grace_s"):
            await keys.rotate(homeless.id, grace_s=-1)


async def test_an_unknown_id_is_told() -> None:
    async with key_index() as (keys, _):
        for action in (keys.rotate("key_x"), keys.revoke("key_x")):
            with pytest.raises(NotFound, match="'key_x'"):
                await action


async def test_no_secret_is_stored_logged_or_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with key_index() as (keys, db):
            record, first = await keys.create("ads", "ci", None, None)
            _, second = await keys.rotate(record.id, grace_s=60)
            shown = repr(keys.list()) + repr(keys.authenticate(second, clock.utc_now_us()))
            with pytest.raises(InvalidKey) as caught:
                keys.authenticate(second + "x", clock.utc_now_us())
            shown += str(caught.value) + caplog.text

            def dump(cursor: Cursor) -> str:
                return "\n".join(cursor.connection.iterdump())

            shown += await db.write(dump)
    for secret in (first, second):
        assert secret[18:] not in shown
        assert hashlib.sha256(secret.encode()).hexdigest() not in repr(keys.list())


@given(st.text(max_size=300))
def test_what_is_shown_of_any_secret_is_a_start_and_four_characters(secret: str) -> None:
    shown = masked(secret)
    head, tail = shown.split("********", 1)
    assert head in {"", "sk-infer"}
    assert len(tail) <= 4
    assert shown.isascii()
    assert shown.isprintable()


async def test_bytes_that_are_no_text_are_a_wrong_key() -> None:
    async with key_index() as (keys, _):
        for secret in ("", "\udcff" * 30, "\x00", "é" * 100):
            assert not accepted(keys, secret)
