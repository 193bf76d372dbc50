"""All API keys in memory, by the hash of their secret. Owns keys; storage keeps them.

Secrets carry 256 random bits and are stored as their SHA-256. A slow hash protects guessable
passwords; here there is nothing to guess, and it would cost every request milliseconds. Secrets
are in no record, log or error. Changes are in force the moment they are made, for open
connections too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from inferd import clock
from inferd.config.limits import NO_LIMITS, Limits
from inferd.errors import Conflict, InvalidField, InvalidKey, NotFound, StorageError
from inferd.inference import Caller
from inferd.storage import keys as stored
from inferd.storage.database import Database
from inferd.storage.keys import KeyRecord

SECRET_START = "sk-inferd-"  # noqa: S105 - what every secret begins with
PREFIX_CHARS = 18
KEYS_PER_TEAM_MAX = 1_000
"""Usable keys of one team: a script that makes a key at each start is noticed."""
NAME_CHARS_MAX = 64
LIFE_S_MAX = 3_153_600_000
"""Longest expiry: a hundred years."""
GRACE_S_MAX = 2_592_000
"""Longest time a rotated secret may live on: 30 days."""
_SHOWN_CHARS = 8
_TAIL_CHARS = 4
_MASKED_CHARS_MIN = 20


class KeyState(StrEnum):
    """Whether a key is accepted, or why not."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"
    NO_TEAM = "no_team"  # its team is not in inferd.toml any more


@dataclass(frozen=True, slots=True)
class _Secret:
    """What a hash stands for; it works before `until_us`."""

    caller: Caller
    until_us: int | None


class KeyIndex:
    """The one owner of keys. `load` makes it; `set_teams` follows a reload of the config."""

    def __init__(self, db: Database, records: Iterable[KeyRecord], teams: Iterable[str]) -> None:
        self._db = db
        self._teams = frozenset(teams)
        self._records: dict[str, KeyRecord] = {}
        self._secrets: dict[bytes, _Secret] = {}
        self._watcher: Callable[[KeyRecord], None] | None = None
        for record in records:
            self._put(record)

    @classmethod
    async def load(cls, db: Database, teams: Iterable[str]) -> KeyIndex:
        """Read every key. Raises StorageError."""
        return cls(db, await stored.load(db), teams)

    def authenticate(self, secret: str, now_us: int) -> Caller:
        """Who has this secret. `now_us` is wall time in microseconds.

        Raises InvalidKey, with one and the same message for every reason.
        """
        known = self._secrets.get(_hash(secret))
        if (
            known is None
            or (known.until_us is not None and now_us >= known.until_us)
            or known.caller.team not in self._teams
        ):
            raise InvalidKey(f"Incorrect API key provided: {masked(secret)}.")
        return known.caller

    def set_teams(self, teams: Iterable[str]) -> None:
        """Only keys of these teams are accepted from now on."""
        self._teams = frozenset(teams)

    def watch(self, watcher: Callable[[KeyRecord], None]) -> None:
        """`watcher` is told of every key now and of every change from now on, at once."""
        self._watcher = watcher
        for record in self._records.values():
            watcher(record)

    def list(self, team: str | None = None) -> list[KeyRecord]:
        """Every key ever made, oldest first; of one team if given."""
        return [record for record in self._records.values() if team in {None, record.team}]

    def get(self, key_id: str) -> KeyRecord:
        """Raises NotFound."""
        record = self._records.get(key_id)
        if record is None:
            raise NotFound(
                f"No key has the id '{key_id}'. `inferd keys list` shows all.", param="id"
            )
        return record

    def state(self, record: KeyRecord, now_us: int) -> KeyState:
        if record.revoked_us is not None:
            return KeyState.REVOKED
        if record.expires_us is not None and now_us >= record.expires_us:
            return KeyState.EXPIRED
        return KeyState.ACTIVE if record.team in self._teams else KeyState.NO_TEAM

    async def create(
        self,
        team: str,
        name: str,
        models: frozenset[str] | None,
        expires_us: int | None,
        limits: Limits = NO_LIMITS,
    ) -> tuple[KeyRecord, str]:
        """Make a key, store it, and return it with its secret, which nothing can show again.

        Raises InvalidField for a team that is not configured or an expiry that is over, Conflict
        when the team has too many keys, StorageError when it cannot be stored.
        """
        now_us = clock.utc_now_us()
        self._check_new(team, name, expires_us, now_us)
        secret = _new_secret()
        record = KeyRecord(
            id="key_" + secrets.token_hex(8),
            team=team,
            name=name,
            prefix=secret[:PREFIX_CHARS],
            hash=_hash(secret),
            models=models,
            created_us=now_us,
            expires_us=expires_us,
            tokens_per_s=limits.tokens_per_s,
            burst_tokens=limits.burst_tokens,
            requests_per_s=limits.requests_per_s,
            burst_requests=limits.burst_requests,
        )
        await stored.insert(self._db, record, self._put)
        return record, secret

    async def rotate(self, key_id: str, grace_s: float = 0.0) -> tuple[KeyRecord, str]:
        """Give the key a new secret; the old one works for `grace_s` more seconds.

        A secret that was still in an earlier grace stops at once. Raises NotFound, Conflict if the
        key is expired, revoked or changed at the same moment, StorageError.
        """
        if not 0 <= grace_s <= GRACE_S_MAX:
            raise InvalidField(
                f"Invalid 'grace_s': expected 0 to {GRACE_S_MAX} seconds.", param="grace_s"
            )
        old = self.get(key_id)
        now_us = clock.utc_now_us()
        state = self.state(old, now_us)
        if state is not KeyState.ACTIVE:
            why = "of a team that is gone" if state is KeyState.NO_TEAM else state.value
            raise Conflict(
                f"Key '{key_id}' cannot be rotated, it is {why}. Create a new one instead.",
                code="key_not_active",
            )
        secret = _new_secret()
        until_us = now_us + round(grace_s * 1_000_000)
        new = replace(
            old,
            hash=_hash(secret),
            prefix=secret[:PREFIX_CHARS],
            rotated_us=now_us,
            previous_hash=old.hash if grace_s else None,
            previous_until_us=until_us if grace_s else None,
        )
        await stored.rotate(self._db, new, old.hash, self._rotated)
        return new, secret

    async def revoke(self, key_id: str) -> KeyRecord:
        """Refuse the key from now on, and for good once this returns.

        Raises NotFound; StorageError if it could not be stored: then it is refused until a restart.
        """
        record = self.get(key_id)
        if record.revoked_us is None:
            record = replace(record, revoked_us=clock.utc_now_us())
            self._put(record)
        assert record.revoked_us is not None
        try:
            await stored.revoke(self._db, key_id, record.revoked_us)
        except StorageError as error:
            raise StorageError(
                f"Key '{key_id}' is refused from now on, but only until inferd restarts, since "
                f"that could not be stored: revoke it again. {error.message}"
            ) from error
        return record

    def _check_new(self, team: str, name: str, expires_us: int | None, now_us: int) -> None:
        if team not in self._teams:
            known = ", ".join(sorted(self._teams)) or "none"
            raise InvalidField(
                f"Invalid 'team': no team '{team}' in inferd.toml. Teams: {known}.", param="team"
            )
        if len(name) > NAME_CHARS_MAX or not name.isprintable():
            raise InvalidField(
                f"Invalid 'name': expected at most {NAME_CHARS_MAX} printable characters.",
                param="name",
            )
        if expires_us is not None and not now_us < expires_us <= now_us + LIFE_S_MAX * 1_000_000:
            raise InvalidField(
                "Invalid 'expires': expected a time ahead, at most 100 years.", param="expires"
            )
        usable = sum(self.state(key, now_us) is KeyState.ACTIVE for key in self.list(team))
        if usable >= KEYS_PER_TEAM_MAX:
            raise Conflict(
                f"Team '{team}' has {usable} usable keys, which is the most. Revoke some first.",
                code="too_many_keys",
            )

    def _rotated(self, new: KeyRecord) -> None:
        """The new secret is stored. A revocation made meanwhile stays in force."""
        self._put(replace(new, revoked_us=self._records[new.id].revoked_us))

    def _put(self, record: KeyRecord) -> None:
        """The one place that changes what is in memory."""
        old = self._records.get(record.id)
        if old is not None:
            for digest in (old.hash, old.previous_hash):
                if digest is not None:
                    self._secrets.pop(digest, None)
        self._records[record.id] = record
        if self._watcher is not None:
            self._watcher(record)
        if record.revoked_us is not None:
            return
        caller = Caller(record.team, record.id, record.models)
        self._secrets[record.hash] = _Secret(caller, record.expires_us)
        if record.previous_hash is not None and record.previous_until_us is not None:
            until_us = min(record.previous_until_us, record.expires_us or record.previous_until_us)
            self._secrets[record.previous_hash] = _Secret(caller, until_us)


def masked(secret: str) -> str:
    """What an error may show of a secret that somebody sent, whatever it was meant for."""
    shown = secret[:_SHOWN_CHARS] if secret.startswith(SECRET_START) else ""
    tail = secret[-_TAIL_CHARS:] if len(secret) >= _MASKED_CHARS_MIN else ""
    tail = tail if tail.isascii() and tail.isprintable() else ""
    return f"{shown}********{tail}"


def _new_secret() -> str:
    return SECRET_START + secrets.token_urlsafe(32)


def _hash(secret: str) -> bytes:
    # A header can hold bytes that are no text: they are a wrong key, not a fault.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
