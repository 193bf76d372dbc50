from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from inferd.storage.database import Database
from tests.fakes.inline_database import InlineDatabase
from tests.unit.storage.rows import Open


@pytest.fixture(params=["file", "inline"])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """The stand-in of virtual-time tests is held to the tests of the real one."""
    if request.param == "file":
        return partial(Database.open, tmp_path / "inferd.db")
    return InlineDatabase.open


@pytest.fixture
def open_file(tmp_path: Path) -> Open:
    return partial(Database.open, tmp_path / "inferd.db")
