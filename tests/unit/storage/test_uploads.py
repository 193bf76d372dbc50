from __future__ import annotations

import pytest

from inferd.storage import uploads
from inferd.storage.uploads import KEPT_US, Ended, PartRow, UploadRow
from tests.fakes.running_database import running
from tests.unit.storage.rows import Open

pytestmark = pytest.mark.real_time


def begun(upload_id: str) -> UploadRow:
    return UploadRow(
        id=upload_id,
        team="search",
        filename="a.jsonl",
        purpose="batch",
        bytes=10,
        created_us=1,
        expires_us=2,
        file_life_s=None,
    )


async def test_however_many_are_overdue_each_gives_its_parts_back(open_database: Open) -> None:
    ids = [f"upload_{number}" for number in range(3)]
    found: list[Ended] = []
    async with running(open_database()) as db:
        for upload_id in ids:
            await uploads.create(db, begun(upload_id), None, lambda _: None)
            part = PartRow(id=f"part of {upload_id}", upload_id=upload_id, bytes=3, created_us=1)
            await uploads.add_part(db, "search", part, lambda _: None)
        long_after_us = 3 + KEPT_US
        for _ in ids:
            await uploads.expire(db, long_after_us, 1, found.extend)
        assert await uploads.expire(db, long_after_us, 1, found.extend) == []
    assert sorted(blob for ended in found for blob, _ in ended.blobs) == [
        f"part of {upload_id}" for upload_id in ids
    ]
