"""Which object an `Idempotency-Key` has made, so that sending a request again makes no other one.

A key is claimed in the transaction that stores its object: both are there or neither. It counts for
a team and a path, as long as its object is there, at most `KEPT_US`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inferd.errors import Conflict
from inferd.storage.database import Cursor

KEPT_US: Final = 7 * 86_400_000_000

_FORGET: Final = "DELETE FROM idempotency_keys WHERE created_us <= ?"

_FIND: Final = """
SELECT digest, object_id FROM idempotency_keys AS known
WHERE team = :team AND path = :path AND key = :key AND (
    EXISTS (SELECT 1 FROM files WHERE id = known.object_id
            AND (expires_us IS NULL OR expires_us > :now_us))
    OR EXISTS (SELECT 1 FROM uploads WHERE id = known.object_id)
    OR EXISTS (SELECT 1 FROM batches WHERE id = known.object_id)
)
"""

_CLAIM: Final = """
INSERT OR REPLACE INTO idempotency_keys (team, path, key, digest, object_id, created_us)
VALUES (:team, :path, :key, :digest, :object_id, :now_us)
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a client calls one request; `digest` is of all that the request says."""

    team: str
    path: str
    key: str
    digest: str


class AlreadyMade(Exception):
    """The same request has made this object before."""

    def __init__(self, object_id: str) -> None:
        super().__init__(object_id)
        self.object_id = object_id


def take(cursor: Cursor, claim: Claim, object_id: str, now_us: int) -> None:
    """Claim a key for an object that the transaction stores.

    Raises:
        AlreadyMade: nothing is to be stored. Conflict: the key was used for another request.
    """
    cursor.execute(_FORGET, (now_us - KEPT_US,))
    named = {"team": claim.team, "path": claim.path, "key": claim.key, "now_us": now_us}
    known = cursor.execute(_FIND, named).fetchone()
    if known is None:
        cursor.execute(_CLAIM, {**named, "digest": claim.digest, "object_id": object_id})
    elif known["digest"] == claim.digest:
        raise AlreadyMade(known["object_id"])
    else:
        raise Conflict(
            "This Idempotency-Key was used for another request already: take a new one.",
            code="idempotency_key_in_use",
        )
