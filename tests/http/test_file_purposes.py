"""Files that are for something else than batches: kept and given back, where the file says so."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.http.test_files import serving

pytestmark = pytest.mark.real_time


async def test_other_purposes_are_kept_where_the_file_names_them(tmp_path: Path) -> None:
    async with serving(tmp_path, purposes=["assistants"]) as inferd, inferd.openai() as client:
        notes = b"\x89 no line of JSON"
        made = await client.files.create(file=("notes.bin", notes), purpose="assistants")
        again = await client.files.content(made.id)
        assert again.content == notes
        assert [one.id async for one in client.files.list(purpose="assistants")] == [made.id]
        with pytest.raises(openai.BadRequestError, match="'batch' and 'assistants'"):
            await client.files.create(file=("notes.bin", notes), purpose="vision")
