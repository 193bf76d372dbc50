from __future__ import annotations

import stat
from pathlib import Path

import pytest

from inferd.errors import StorageError
from inferd.storage.lock import SERVE, hold

pytestmark = pytest.mark.real_time


async def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    state_dir = tmp_path / "a" / "state"
    async with hold(state_dir, SERVE):
        assert modes(state_dir) == (0o700, 0o600)


def modes(state_dir: Path) -> tuple[int, int]:
    found = (state_dir.stat().st_mode, (state_dir / "inferd.lock").stat().st_mode)
    return stat.S_IMODE(found[0]), stat.S_IMODE(found[1])


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="state_dir"):
        async with hold(tmp_path / "file" / "state", SERVE):
            pass
