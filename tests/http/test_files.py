"""Files over HTTP. Goal: what a team uploads it gets back, and nobody else sees any of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import openai
import orjson
import pytest

from inferd.storage.object_store import SEGMENT_BYTES
from tests.fakes.gateway import Gateway, gateway, until
from tests.http.raw_connection import Answer, RawConnection, client_of

pytestmark = pytest.mark.real_time

LINE = b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"chat"}}\n'
NAUGHTY: list[str] = orjson.loads((Path(__file__).parents[1] / "data" / "blns.json").read_bytes())[
    ::5
]
BOUNDARY = "frontier"
NOT_A_BATCH = "Invalid file format for Batch API. Must be .jsonl"


@asynccontextmanager
async def serving(folder: Path, **files: object) -> AsyncIterator[Gateway]:
    """A gateway whose only worker is not there: files need none."""
    sections = "".join(f"{name} = {value}\n" for name, value in files.items())
    more = f'[files]\nstore = "files"\n{sections}[[teams]]\nname = "ads"\n'
    nobody: list[Mapping[str, object]] = [{"url": "http://127.0.0.1:9"}]
    async with gateway(folder, workers=nobody, ready=0, more=more) as inferd:
        yield inferd


def stored(folder: Path) -> list[str]:
    """Every object that is in the store, and every remnant of one."""
    return sorted(path.name for path in (folder / "files").rglob("*") if path.is_file())


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


PURPOSE = part("purpose", b"batch")
FORM = f"multipart/form-data; boundary={BOUNDARY}"
FILE = part("file", LINE, "a.jsonl")
END = f"--{BOUNDARY}--\r\n".encode()


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + END


async def upload(inferd: Gateway, body: bytes, path: str = "/v1/files") -> Answer:
    async with client_of(inferd) as client:
        client.request("POST", path, body, {"content-type": FORM})
        return await client.answer()


async def uploaded(inferd: Gateway, data: bytes = LINE, filename: str = "a.jsonl") -> str:
    """The id of a file that is there."""
    answer = await upload(inferd, form(PURPOSE, part("file", data, filename)))
    assert answer.status == 200, answer.body
    file_id = answer.json["id"]
    assert isinstance(file_id, str)
    return file_id


async def delete(inferd: Gateway, file_id: str) -> int:
    async with client_of(inferd) as client:
        client.request("DELETE", f"/v1/files/{file_id}")
        return (await client.answer()).status


def chunked(client: RawConnection, pieces: Iterable[bytes]) -> None:
    """As the JS SDK sends a form: no length is announced."""
    client.request(
        "POST", "/v1/files", headers={"content-type": FORM, "transfer-encoding": "chunked"}
    )
    for piece in pieces:
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    client.send(b"0\r\n\r\n")


async def test_the_sdk_uploads_looks_lists_downloads_and_deletes(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, inferd.openai() as client:
        made = await client.files.create(file=("day.jsonl", LINE * 3), purpose="batch")
        assert (made.bytes, made.filename, made.purpose) == (3 * len(LINE), "day.jsonl", "batch")
        assert made.status == "processed"
        assert made.expires_at == made.created_at + 30 * 86_400
        assert await client.files.retrieve(made.id) == made
        assert await client.files.wait_for_processing(made.id) == made
        assert (await client.files.content(made.id)).content == LINE * 3
        assert [one.id async for one in client.files.list()] == [made.id]
        gone = await client.files.delete(made.id)
        assert (gone.id, gone.deleted) == (made.id, True)
        with pytest.raises(openai.NotFoundError, match=made.id):
            await client.files.content(made.id)
        assert [one async for one in client.files.list()] == []
        assert stored(tmp_path) == []


async def test_the_file_may_come_first_and_without_a_length(tmp_path: Path) -> None:
    body = form(part("file", LINE, "day.jsonl"), PURPOSE)
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    async with serving(tmp_path) as inferd, client_of(inferd) as client:
        chunked(client, pieces)
        answer = await client.answer()
        assert answer.status == 200, answer.body
        assert answer.json["bytes"] == len(LINE)


async def test_each_file_has_its_own_life(tmp_path: Path) -> None:
    async with serving(tmp_path, life_s=7_200) as inferd, inferd.openai() as client:
        file = ("a.jsonl", LINE)
        usual = await client.files.create(file=file, purpose="batch")
        assert usual.expires_at == usual.created_at + 7_200
        short = await client.files.create(
            file=file, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
        )
        assert short.expires_at == short.created_at + 3_600


async def test_pages_go_on_behind_a_file_that_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, inferd.openai() as client:
        made = [
            (await client.files.create(file=(f"{n}.jsonl", LINE), purpose="batch")).id
            for n in range(5)
        ]
        oldest_first = [one.id async for one in client.files.list(limit=2, order="asc")]
        assert oldest_first == made
        async for one in client.files.list(limit=2):
            await client.files.delete(one.id)
        assert stored(tmp_path) == []
        page = await client.files.list(limit=1, purpose="batch_output")
        assert (page.data, page.has_more) == ([], False)


async def test_another_team_finds_nothing_and_learns_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, AsyncExitStack() as stack:
        ours = await uploaded(inferd)
        key = await inferd.new_key("ads")
        theirs = await stack.enter_async_context(inferd.openai(api_key=key))
        assert [one async for one in theirs.files.list()] == []
        unknown = f"file-{'0' * 32}"
        for call in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            told = []
            for file_id in (ours, unknown):
                with pytest.raises(openai.NotFoundError) as refused:
                    await call(file_id)
                told.append(str(refused.value).replace(file_id, "ID"))
            assert told[0] == told[1]
        assert (await content(inferd, ours)).body == LINE


async def content(inferd: Gateway, file_id: str, method: str = "GET", **headers: str) -> Answer:
    async with client_of(inferd) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        client.request(method, f"/v1/files/{file_id}/content", headers=named)
        if method == "HEAD":
            return Answer(*await client.head(), b"")
        return await client.answer()


async def test_ranges_of_a_file_of_several_segments(tmp_path: Path) -> None:
    data = LINE * (SEGMENT_BYTES // len(LINE) * 2 + 9)
    async with serving(tmp_path) as inferd:
        made = await uploaded(inferd, data, "Ünï.jsonl")
        assert len(stored(tmp_path)) == 3
        whole = await content(inferd, made)
        assert whole.body == data
        assert whole.headers["content-length"] == str(len(data))
        assert "filename*=UTF-8''%C3%9Cn%C3%AF" in whole.headers["content-disposition"]
        cut = SEGMENT_BYTES - 5
        some = await content(inferd, made, range=f"bytes={cut}-{cut + 9}")
        assert (some.status, some.body) == (206, data[cut : cut + 10])
        assert some.headers["content-range"] == f"bytes {cut}-{cut + 9}/{len(data)}"
        last = await content(inferd, made, range="bytes=-10")
        assert last.body == data[-10:]
        behind = await content(inferd, made, range=f"bytes={len(data)}-")
        assert (behind.status, behind.error["code"]) == (416, "range_not_satisfiable")
        assert behind.headers["content-range"] == f"bytes */{len(data)}"
        stale = await content(inferd, made, range="bytes=0-1", if_range='"other"')
        assert (stale.status, len(stale.body)) == (200, len(data))
        head = await content(inferd, made, "HEAD")
        assert (head.status, head.headers["content-length"]) == (200, str(len(data)))
        assert await delete(inferd, made) == 200
        assert stored(tmp_path) == []


BELOW = "integer_below_min_value"
TOO_LARGE = "request_too_large"
MISSING = "missing_required_parameter"
ANCHOR = part("expires_after[anchor]", b"created_at")


def seconds(value: bytes) -> bytes:
    return part("expires_after[seconds]", value)


REFUSED: list[tuple[str, list[bytes], int, str | None, str]] = [
    ("no jsonl", [PURPOSE, part("file", LINE, "a.txt")], 400, None, NOT_A_BATCH),
    ("an archive", [PURPOSE, part("file", b"PK\x03\x04", "a.jsonl")], 400, None, NOT_A_BATCH),
    ("bad UTF-8", [part("file", b'{"a":"\xff"}', "a.jsonl"), PURPOSE], 400, None, NOT_A_BATCH),
    ("an array", [PURPOSE, part("file", b"[]\n{}", "a.jsonl")], 400, None, NOT_A_BATCH),
    ("empty", [PURPOSE, part("file", b"", "a.jsonl")], 400, None, "empty"),
    ("blank", [PURPOSE, part("file", b"\xef\xbb\xbf \r\n\n", "a.jsonl")], 400, None, "empty"),
    ("no file", [PURPOSE], 400, MISSING, "'file'"),
    ("no purpose", [FILE], 400, MISSING, "'purpose'"),
    ("purpose", [part("purpose", b"vision"), FILE], 400, "invalid_value", "'batch'"),
    ("two files", [PURPOSE, FILE, FILE], 400, "invalid_value", "several"),
    ("no filename", [PURPOSE, part("file", LINE)], 400, "invalid_value", "filename"),
    ("unknown field", [part("metadata", b"x"), PURPOSE], 400, "unknown_parameter", "metadata"),
    ("long field", [part("purpose", b"x" * 5_000)], 400, None, "too long"),
    ("zero in name", [PURPOSE, part("file", LINE, "a\0.jsonl")], 400, "invalid_value", "control"),
    ("only a folder", [PURPOSE, part("file", LINE, "a/")], 400, "empty_string", "'file'"),
    ("anchor", [PURPOSE, seconds(b"3600"), FILE], 400, MISSING, "expires_after.anchor"),
    ("too short a life", [PURPOSE, ANCHOR, seconds(b"60"), FILE], 400, BELOW, "3600"),
    ("odd life", [PURPOSE, ANCHOR, seconds(b"1h"), FILE], 400, "invalid_type", "after.seconds"),
    ("too large", [PURPOSE, part("file", LINE * 9_000, "a.jsonl")], 413, TOO_LARGE, "500000 bytes"),
]  # fmt: skip


async def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, bytes_max=500_000) as inferd:
        for name, parts, status, code, words in REFUSED:
            answer = await upload(inferd, form(*parts))
            assert answer.status == status, (name, answer.body)
            assert answer.error["code"] == code, (name, answer.error)
            assert words in answer.error["message"], (name, answer.error)
        assert stored(tmp_path) == []
        assert inferd.app.node.files.held("search").bytes == 0


async def test_the_largest_file_fits_and_one_byte_more_does_not(tmp_path: Path) -> None:
    async with serving(tmp_path, bytes_max=len(LINE) * 10) as inferd:
        fits = await upload(inferd, form(PURPOSE, part("file", LINE * 10, "a.jsonl")))
        assert fits.status == 200
        over = await upload(inferd, form(PURPOSE, part("file", LINE * 10 + b"\n", "a.jsonl")))
        assert (over.status, over.error["code"]) == (413, "request_too_large")
        assert len(stored(tmp_path)) == 1


async def test_no_form_and_a_broken_one(tmp_path: Path) -> None:
    body = form(PURPOSE, part("file", LINE, "a.jsonl"))
    async with serving(tmp_path) as inferd:
        async with client_of(inferd) as client:
            client.request("POST", "/v1/files", body, {"content-type": "application/json"})
            answer = await client.answer()
            assert answer.error["code"] == "unsupported_content_type"
        for broken in (body[: -len(END)], b"no boundary at all", part("x", b"") * 20 + END):
            answer = await upload(inferd, broken)
            assert answer.status == 400, answer.body
            assert "form" in answer.error["message"]
        assert stored(tmp_path) == []


async def test_names_are_shown_and_never_paths(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        for given, shown in (
            ("../../../etc/passwd.jsonl", "passwd.jsonl"),
            ("C:\\temp\\a.jsonl", "a.jsonl"),
            ("/abs/..jsonl", "..jsonl"),
            ("田中さん 🦄 $(rm -rf).jsonl", "田中さん 🦄 $(rm -rf).jsonl"),
        ):
            answer = await upload(inferd, form(PURPOSE, part("file", LINE, given)))
            assert answer.json["filename"] == shown
        assert len(stored(tmp_path)) == 4
        assert not any("jsonl" in name for name in stored(tmp_path))


async def test_naughty_names_are_kept_as_they_are_or_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, inferd.openai() as client:
        for text in NAUGHTY:
            body = form(PURPOSE, part("file", LINE, text.replace('"', "%22") + ".jsonl"))
            answer = await upload(inferd, body)
            if answer.status != 200:
                assert answer.error["param"] == "file" or "form" in answer.error["message"]
                continue
            assert answer.json["filename"].endswith(".jsonl")
            assert "/" not in answer.json["filename"]
            assert (await content(inferd, answer.json["id"])).body == LINE
        names = {one.filename async for one in client.files.list()}
        assert len(names) > len(NAUGHTY) * 0.7
        assert all(name.startswith("blob_") for name in stored(tmp_path))


async def test_a_quota_holds_for_uploads_at_the_same_time(tmp_path: Path) -> None:
    quota = len(LINE) * 10
    async with serving(tmp_path, team_bytes_max=quota) as inferd:
        body = form(PURPOSE, part("file", LINE * 4, "a.jsonl"))
        answers = await asyncio.gather(*(upload(inferd, body) for _ in range(8)))
        refused = [answer for answer in answers if answer.status != 200]
        assert len(refused) == 6
        assert {one.error["code"] for one in refused} == {"file_quota_exceeded"}
        assert {one.status for one in refused} == {403}
        assert len(stored(tmp_path)) == 2
        async with inferd.openai() as client:
            async for one in client.files.list():
                await client.files.delete(one.id)
        assert (await upload(inferd, body)).status == 200


async def test_the_number_of_files_is_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, team_files_max=1) as inferd:
        body = form(PURPOSE, part("file", LINE, "a.jsonl"))
        assert (await upload(inferd, body)).status == 200
        answer = await upload(inferd, body)
        assert (answer.status, answer.error["code"]) == (403, "file_quota_exceeded")


async def test_a_client_that_leaves_or_falls_silent_leaves_nothing(tmp_path: Path) -> None:
    begun = PURPOSE + part("file", LINE * (SEGMENT_BYTES // len(LINE) + 99), "a.jsonl")
    async with serving(tmp_path) as inferd:
        async with client_of(inferd) as client:
            client.request(
                "POST", "/v1/files", headers={"content-type": FORM, "content-length": "99000000"}
            )
            client.send(begun)
            await until(lambda: stored(tmp_path))
            client.reset()
        await until(lambda: not stored(tmp_path))
        async with client_of(inferd) as client:
            client.request(
                "POST", "/v1/files", headers={"content-type": FORM, "content-length": "99000000"}
            )
            client.send(begun)
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert stored(tmp_path) == []
        assert inferd.app.node.files.held("search").bytes == 0


async def test_a_store_that_fails_is_told_and_found_again(tmp_path: Path) -> None:
    body = form(PURPOSE, part("file", LINE, "a.jsonl"))
    async with serving(tmp_path) as inferd:
        made = await uploaded(inferd)
        (tmp_path / "files").rename(tmp_path / "away")
        (tmp_path / "files").write_text("no folder")
        for answer in (await upload(inferd, body), await content(inferd, made)):
            assert (answer.status, answer.error["code"]) == (503, "file_store_unavailable")
            assert str(tmp_path) not in answer.body.decode()
        (tmp_path / "files").unlink()
        (tmp_path / "away").rename(tmp_path / "files")
        assert (await content(inferd, made)).body == LINE
        assert len(stored(tmp_path)) == 1
        assert 'inferd_file_store_errors_total{operation="put"} 1.0' in await inferd.metrics()


async def test_files_outlive_a_restart_and_remnants_do_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        made = await uploaded(inferd)
        (folder,) = (tmp_path / "files").iterdir()
    kept = stored(tmp_path)
    (folder / "blob_0123.00000").write_bytes(b"of a process that was killed")
    (folder / "blob_0123.00001#7").write_bytes(b"half a segment")
    async with serving(tmp_path) as inferd:
        await until(lambda: stored(tmp_path) == kept)
        key = inferd.headers
        async with inferd.http.get(f"{inferd.base_url}/v1/files/{made}", headers=key) as answer:
            assert orjson.loads(await answer.read())["bytes"] == len(LINE)
        assert inferd.app.node.files.held("search").bytes == len(LINE)


async def test_what_has_expired_is_gone_at_once_and_swept(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        made = await uploaded(inferd)
        node = inferd.app.node
        await node.db.write(lambda cursor: cursor.execute("UPDATE files SET expires_us = 1"))
        assert (await content(inferd, made)).status == 404
        await node.files.expire()
        assert stored(tmp_path) == []
        assert node.files.held("search").files == 0


async def test_transfers_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path, transfers_max=1) as inferd, client_of(inferd) as slow:
        slow.request("POST", "/v1/files", headers={"content-type": FORM, "content-length": "999"})
        slow.send(PURPOSE)
        await until(lambda: inferd.app.node.files._transfers)
        answer = await upload(inferd, form(PURPOSE, part("file", LINE, "a.jsonl")))
        assert (answer.status, answer.error["code"]) == (429, "overloaded")


async def test_a_reader_that_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        data = LINE * (4 * SEGMENT_BYTES // len(LINE))
        made = await uploaded(inferd, data)
        async with client_of(inferd, lazy=True) as client:
            client.request("GET", f"/v1/files/{made}/content")
            await client.head()
            await until(lambda: not inferd.app.node.files._transfers)
        assert 'outcome="client_left"' in await inferd.metrics()
