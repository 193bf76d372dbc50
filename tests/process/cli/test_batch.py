"""`inferd batch`: check, submit, follow, list, cancel and download, as a person and as a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engines import fake_engine
from tests.fakes.inferd_process import Folder

pytestmark = pytest.mark.real_time
CHAT = "/v1/chat/completions"


def lines(count: int, text: str = "[tokens 5]") -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": text}]}
    return "".join(
        json.dumps({"custom_id": f"id-{n}", "method": "POST", "url": CHAT, "body": body}) + "\n"
        for n in range(count)
    )


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Folder]:
    folder = Folder(path)
    async with fake_engine(path, model="chat", speed=200) as engine:
        folder.attach(engine.base_url)
        key = await folder.key()
        (path / ".inferd").mkdir(exist_ok=True)
        (path / ".inferd" / "first.key").write_text(key)
        async with folder.serving() as server:
            await server.until("is ready")
            yield folder


async def told(folder: Folder, *arguments: str) -> Any:
    done = await folder.run("batch", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


async def test_a_file_from_submit_to_download(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(lines(6))
    async with serving(tmp_path) as folder:
        done = await folder.run("batch", "submit", "in.jsonl", "--wait", "--metadata", "run=x")
        assert done.code == 0, done.err
        assert "completed" in done.out
        assert "6: 6 completed, 0 failed" in done.out
        assert "metadata  run=x" in done.out
        assert "validating: 0 of 0" in done.err
        (batch,) = await told(folder, "list")
        assert (batch["status"], batch["metadata"]) == ("completed", {"run": "x"})
        listed = await folder.run("batch", "list")
        assert batch["id"] in listed.out
        shown = await told(folder, "show", batch["id"])
        assert shown["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        written = await told(folder, "download", batch["id"], "-o", "out.jsonl")
        assert [one["path"] for one in written] == ["out.jsonl"]
        results = (tmp_path / "out.jsonl").read_text().splitlines()
        assert {json.loads(one)["custom_id"] for one in results} == {f"id-{n}" for n in range(6)}
        refused = await folder.run("batch", "cancel", batch["id"])
        assert refused.code == 1
        assert "Cannot cancel a batch with status 'completed'" in refused.err


async def test_a_batch_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(lines(500, "[tokens 250]"))
    async with serving(tmp_path) as folder:
        submitted = await folder.run("batch", "submit", "in.jsonl", "--window", "2h")
        assert submitted.code == 0, submitted.err
        batch_id = submitted.out.strip()
        assert batch_id.startswith("batch_")
        batch = await told(folder, "cancel", batch_id, "--wait")
        assert batch["status"] == "cancelled"
        assert batch["completion_window"] == "2h"


async def test_a_wrong_file_is_told_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(lines(1) + lines(1) + "x\n")
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    for command in ("check", "submit"):
        done = await folder.run("batch", command, "bad.jsonl")
        assert done.code == 1
        assert "bad.jsonl: line 2: custom_id" in done.err
        assert "bad.jsonl: line 3: This line is not parseable as JSON" in done.err
    done = await folder.run("batch", "check", "bad.jsonl", "--json")
    assert done.code == 1
    report = json.loads(done.out)
    assert [error["line"] for error in report["errors"]] == [2, 3]
    assert report["valid"] is False


async def test_check_knows_the_models_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(lines(2))
    (tmp_path / "other.jsonl").write_text(lines(2).replace('"model": "chat"', '"model": "gone"'))
    folder = Folder(tmp_path)
    anything = await folder.run("batch", "check", "other.jsonl")
    assert anything.code == 0, "without an inferd.toml nobody knows"
    folder.attach("http://127.0.0.1:9")
    right = await folder.run("batch", "check", "in.jsonl", "--team", "search")
    assert (right.code, "2 requests for chat" in right.out) == (0, True)
    wrong = await folder.run("batch", "check", "other.jsonl")
    assert wrong.code == 1
    assert "The model 'gone' does not exist" in wrong.err
    unknown = await folder.run("batch", "check", "in.jsonl", "--team", "nobody")
    assert unknown.code == 2


async def test_what_cannot_be_done_is_told(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(lines(1))
    async with serving(tmp_path) as folder:
        none = await folder.run("batch", "list")
        assert "No batches yet" in none.err
        unknown = await folder.run("batch", "show", "batch_x")
        assert (unknown.code, "No batch found with id 'batch_x'" in unknown.err) == (1, True)
        window = await folder.run("batch", "submit", "in.jsonl", "--window", "5m")
        assert (window.code, "from '1h' to '7d'" in window.err) == (1, True)
