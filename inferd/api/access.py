"""Who may use what: keys, teams and model names, joined for the handlers.

Owns the table of teams; keys and names have their own owners.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferd.api.auth import Keys
from inferd.config.schema import Team
from inferd.errors import InvalidKey
from inferd.inference import Caller
from inferd.routing.pools import Pools


class Access:
    """`update` takes the teams of a new config; keys of a team that is gone are refused."""

    def __init__(self, keys: Keys, pools: Pools, teams: Iterable[Team]) -> None:
        self.keys = keys
        self.pools = pools
        self._teams: dict[str, Team] = {}
        self.update(teams)

    def update(self, teams: Iterable[Team]) -> None:
        self._teams = {team.name: team for team in teams}

    def team(self, caller: Caller) -> Team:
        """The caller's team.

        Raises:
            InvalidKey: it was removed from the config since the key was checked.
        """
        team = self._teams.get(caller.team)
        if team is None:
            raise InvalidKey("This API key is no longer valid: its team was removed.")
        return team

    def files_bytes_max(self, team: str) -> int | None:
        """The team's own quota of file bytes, if it has one."""
        found = self._teams.get(team)
        return found.files_bytes_max if found else None

    def weight(self, team: str) -> int:
        """The team's share in a fair queue; 1 for a team that is gone."""
        found = self._teams.get(team)
        return found.weight if found else 1
