"""A path that is asked by a wrong method tells all that it allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http.raw_connection import client_of, raw_connection
from tests.http.test_files import serving

pytestmark = pytest.mark.real_time


async def test_a_wrong_method_hears_all_that_the_path_allows(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, client_of(inferd) as client:
        for path, allowed in {
            "/v1/files": "GET, HEAD, POST",
            "/v1/files/file-1": "DELETE, GET, HEAD",
            "/v1/models/chat": "DELETE, GET, HEAD",
        }.items():
            client.request("PUT", path)
            answer = await client.answer()
            assert (answer.status, answer.headers["allow"]) == (405, allowed)


async def test_admins_hear_it_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        headers = {"authorization": f"Bearer {inferd.admin_key}"}
        async with raw_connection(inferd.admin, headers) as client:
            client.request("PUT", "/admin/v1/keys")
            answer = await client.answer()
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")
