"""Rows of API keys. `quota.keys.KeyIndex` is the only caller: it owns what is in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import orjson

from inferd.errors import Conflict
from inferd.storage.database import Cursor, Database, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One key; `hash` is the SHA-256 of its secret.

    `previous_hash` is that of the secret it replaced, which works until `previous_until_us`.
    """

    id: str
    team: str
    name: str
    prefix: str
    hash: bytes = field(repr=False)
    models: frozenset[str] | None
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    rotated_us: int | None = None
    previous_hash: bytes | None = field(default=None, repr=False)
    previous_until_us: int | None = None
    tokens_per_s: int | None = None
    burst_tokens: int | None = None
    requests_per_s: float | None = None
    burst_requests: int | None = None


_SELECT = """
SELECT id, team, name, prefix, hash, models, created_us, expires_us, revoked_us, rotated_us,
       previous_hash, previous_until_us, tokens_per_s, burst_tokens, requests_per_s, burst_requests
FROM keys ORDER BY created_us, id
"""

_INSERT = """
INSERT INTO keys (id, team, name, prefix, hash, models, created_us, expires_us, revoked_us,
                  rotated_us, previous_hash, previous_until_us,
                  tokens_per_s, burst_tokens, requests_per_s, burst_requests)
VALUES (:id, :team, :name, :prefix, :hash, :models, :created_us, :expires_us, :revoked_us,
        :rotated_us, :previous_hash, :previous_until_us,
        :tokens_per_s, :burst_tokens, :requests_per_s, :burst_requests)
"""

_ROTATE = """
UPDATE keys SET hash = :hash, prefix = :prefix, rotated_us = :rotated_us,
                previous_hash = :previous_hash, previous_until_us = :previous_until_us
WHERE id = :id AND hash = :replaced AND revoked_us IS NULL
"""

_REVOKE = "UPDATE keys SET revoked_us = coalesce(revoked_us, ?) WHERE id = ?"


async def load(db: Database) -> list[KeyRecord]:
    """Every key ever made, oldest first."""
    return [_record(row) for row in await db.read(_SELECT)]


async def insert(
    db: Database, record: KeyRecord, committed: Callable[[KeyRecord], None]
) -> KeyRecord:
    """Store a new key; `committed` gets it once it is on disk, also if the caller has gone."""
    return await db.write(partial(_insert, record), committed)


async def rotate(
    db: Database, record: KeyRecord, replaced: bytes, committed: Callable[[KeyRecord], None]
) -> KeyRecord:
    """Store the new secret's hash. Raises Conflict if `replaced` is no longer the current hash."""
    return await db.write(partial(_rotate, record, replaced), committed)


async def revoke(db: Database, key_id: str, revoked_us: int) -> None:
    """Mark a key as revoked; an earlier mark stays."""
    await db.write(lambda cursor: cursor.execute(_REVOKE, (revoked_us, key_id)).rowcount)


def _insert(record: KeyRecord, cursor: Cursor) -> KeyRecord:
    cursor.execute(_INSERT, _parameters(record))
    return record


def _rotate(record: KeyRecord, replaced: bytes, cursor: Cursor) -> KeyRecord:
    cursor.execute(_ROTATE, {**_parameters(record), "replaced": replaced})
    if cursor.rowcount != 1:
        raise Conflict(
            f"Key '{record.id}' was rotated or revoked at the same moment; its secret is not the "
            "one you meant to replace. List the keys and try again.",
            code="key_changed",
        )
    return record


def _parameters(record: KeyRecord) -> dict[str, Any]:
    parameters = asdict(record)
    if record.models is not None:
        parameters["models"] = orjson.dumps(sorted(record.models)).decode()
    return parameters


def _record(row: Row) -> KeyRecord:
    columns = dict(row)
    if columns["models"] is not None:
        columns["models"] = frozenset(orjson.loads(columns["models"]))
    return KeyRecord(**columns)
