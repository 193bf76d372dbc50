"""What an admin does with teams and keys, without HTTP.

Used by the admin API, and by the command line where no server runs. Answers are the JSON objects of
the admin API, times in them whole seconds since the epoch. A secret is only in the answer to
`create` and `rotate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from inferd import clock
from inferd.config.limits import PAIRS, Limits
from inferd.config.schema import Config, Team
from inferd.errors import InvalidField, InvalidKey, NotFound
from inferd.quota.keys import LIFE_S_MAX, KeyIndex, KeyState
from inferd.storage.keys import KeyRecord

Answer = dict[str, Any]
"""A JSON object."""


class KeyAdmin:
    """`config` gives the configuration in force, for teams and model names."""

    def __init__(self, keys: KeyIndex, config: Callable[[], Config]) -> None:
        self._keys = keys
        self._config = config

    async def teams(self) -> list[Answer]:
        """Every team of inferd.toml, in its order."""
        return [self._team(team) for team in self._config().teams]

    async def team(self, name: str) -> Answer:
        """One team with its keys. Raises NotFound."""
        team = self._find_team(name)
        if team is None:
            raise NotFound(f"No team '{name}' in inferd.toml. {self._known_teams()}", param="team")
        return self._team(team) | {"keys": [self._key(key) for key in self._keys.list(name)]}

    async def keys(self, team: str | None = None) -> list[Answer]:
        """Every key ever made, oldest first; of one team if given. Raises NotFound."""
        found = self._keys.list(team)
        if team is not None and not found:
            await self.team(team)
        return [self._key(key) for key in found]

    async def create(
        self,
        team: str,
        name: str = "",
        expires_s: float | None = None,
        models: Sequence[str] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> Answer:
        """Make a key that works for `expires_s` seconds (None: always) on `models` (None: all).

        `limits`: its own, beside its team's; keys of `config.limits.Limits`.

        Raises InvalidField, Conflict or StorageError.
        """
        allowed = None if models is None else self._public_names(team, models)
        expires_us = None
        if expires_s is not None:
            if not 1 <= expires_s <= LIFE_S_MAX:
                raise InvalidField(
                    f"Invalid 'expires_s': expected 1 to {LIFE_S_MAX} seconds.", param="expires_s"
                )
            expires_us = clock.utc_now_us() + math.ceil(expires_s * 1_000_000)
        own = _limits(limits or {})
        record, secret = await self._keys.create(team, name, allowed, expires_us, own)
        return self._key(record) | {"secret": secret}

    async def rotate(self, key_id: str, grace_s: float = 0.0) -> Answer:
        """Give a key a new secret. Raises NotFound, Conflict, InvalidField or StorageError."""
        record, secret = await self._keys.rotate(key_id, grace_s)
        return self._key(record) | {"secret": secret}

    async def revoke(self, key_id: str) -> Answer:
        """Refuse a key from now on. Raises NotFound or StorageError."""
        return self._key(await self._keys.revoke(key_id))

    async def verify(self, secret: str) -> Answer | None:
        """The key that has this secret, if it is accepted."""
        try:
            caller = self._keys.authenticate(secret, clock.utc_now_us())
        except InvalidKey:
            return None
        return self._key(self._keys.get(caller.key_id))

    def _find_team(self, name: str) -> Team | None:
        return next((team for team in self._config().teams if team.name == name), None)

    def _known_teams(self) -> str:
        return f"Teams: {', '.join(team.name for team in self._config().teams) or 'none'}."

    def _public_names(self, team_name: str, names: Sequence[str]) -> frozenset[str]:
        """Aliases become the public names they stand for now. Raises InvalidField."""
        models = self._config().models
        public = {name: model.name for model in models for name in (model.name, *model.aliases)}
        public |= {
            adapter.name: adapter.name
            for model in models
            for version in model.versions
            for adapter in version.adapters
        }
        team = self._find_team(team_name)
        listed = public if team is None or team.models is None else team.models
        allowed = {public[name] for name in listed}
        for name in names:
            if public.get(name) not in allowed:
                raise InvalidField(
                    f"Invalid 'models': team '{team_name}' has no model '{name}'. "
                    f"Models: {', '.join(sorted(allowed)) or 'none'}.",
                    param="models",
                )
        if not names:
            raise InvalidField(
                "Invalid 'models': expected at least one name; leave it out to allow all.",
                param="models",
            )
        return frozenset(public[name] for name in names)

    def _team(self, team: Team) -> Answer:
        now_us = clock.utc_now_us()
        keys = self._keys.list(team.name)
        active = sum(self._keys.state(key, now_us) is KeyState.ACTIVE for key in keys)
        return {"object": "team", **team.model_dump(mode="json"), "active_keys": active}

    def _key(self, record: KeyRecord) -> Answer:
        now_us = clock.utc_now_us()
        until_us = record.previous_until_us
        in_grace = until_us is not None and now_us < until_us
        return {
            "object": "key",
            "id": record.id,
            "team": record.team,
            "name": record.name,
            "prefix": record.prefix,
            "models": None if record.models is None else sorted(record.models),
            "limits": {
                key: value
                for key in Limits.model_fields
                if (value := getattr(record, key)) is not None
            },
            "state": self._keys.state(record, now_us),
            "created_at": _seconds(record.created_us),
            "expires_at": _seconds(record.expires_us),
            "revoked_at": _seconds(record.revoked_us),
            "rotated_at": _seconds(record.rotated_us),
            "previous_secret_until": _seconds(until_us) if in_grace else None,
        }


def _limits(given: Mapping[str, float]) -> Limits:
    for pair in PAIRS:
        for key, other in (pair, pair[::-1]):
            if key in given and other not in given:
                raise InvalidField(
                    f"Invalid 'limits': {key} needs {other} beside it.", param=f"limits.{other}"
                )
    try:
        return Limits.model_validate(dict(given))
    except ValidationError as error:
        wrong = error.errors()[0]
        path = ".".join(("limits", *(str(part) for part in wrong["loc"])))
        raise InvalidField(f"Invalid '{path}': {wrong['msg']}.", param=path) from error


def _seconds(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1_000_000
