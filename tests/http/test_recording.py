"""Text of teams. Goal: kept of those that ask for it, in its place; of nobody else, nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd.storage import recordings
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, gateway
from tests.fakes.inferd_process import Folder
from tests.http.raw_connection import Answer, ask, chat

pytestmark = pytest.mark.real_time(timeout_s=60)

MINE = "sentinel-of-ads-5f0c"
THEIRS = "sentinel-of-search-91ab"
KEEPS = '[[teams]]\nname = "ads"\n[teams.recording]\nkept_days = 2\n'


async def asked(inferd: Gateway, key: str, said: str, *, stream: bool) -> Answer:
    body = chat(f"[say {said}-heard] {said}", max_tokens=60, stream=stream)
    answer = await ask(inferd, body, {"Authorization": f"Bearer {key}"})
    assert answer.status == 200, answer.body
    return answer


def holding(folder: Path, words: str) -> set[Path]:
    """Every file below a folder that has these words in it."""
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and words.encode() in path.read_bytes()
    }


async def test_the_text_of_those_who_want_it_kept_and_of_nobody_else(
    tmp_path: Path, fast: EngineProcess
) -> None:
    folder = Folder(tmp_path)
    async with gateway(tmp_path, fast, more=KEEPS) as inferd:
        mine = await inferd.new_key("ads")
        answers = [
            await asked(inferd, key, said, stream=stream)
            for key, said in ((mine, MINE), (inferd.key, THEIRS))
            for stream in (True, False)
        ]
        streamed, whole, other, _ = (answer.headers["x-request-id"] for answer in answers)
        shown = await folder.run("why", whole, "--text", "--json")
        assert shown.code == 0, shown.err
        told = json.loads(shown.out)
        assert json.loads(told["request"])["messages"][0]["content"].endswith(MINE)
        assert told["answer"].encode() == answers[1].body
        assert not told["cut"]
        text = await folder.run("why", streamed, "--text")
        assert f"content: {MINE}-heard" in text.out, "its pieces are joined"
        assert (await folder.run("why", other, "--text")).code == 1
        audited = (await folder.run("audit")).out
        assert "requests/{id}/text" in audited
        assert whole in audited
        listed = json.loads((await folder.run("recordings", "--json")).out)
        assert [one["team"] for one in listed] == ["ads"]
    assert {path.parts[1] for path in holding(tmp_path, MINE)} == {"recordings"}
    assert holding(tmp_path, THEIRS) == set()


async def test_it_goes_when_it_is_told_to(tmp_path: Path, fast: EngineProcess) -> None:
    folder = Folder(tmp_path)
    async with gateway(tmp_path, fast, more=KEEPS) as inferd:
        answer = await asked(inferd, await inferd.new_key("ads"), MINE, stream=False)
        assert (await folder.run("why", answer.headers["x-request-id"], "--text")).code == 0
        gone = await folder.run("recordings", "delete", "ads")
        assert gone.code == 0, gone.err
        assert (await folder.run("recordings", "delete", "ads")).code == 1
        assert holding(tmp_path, MINE) == set()
        assert (await folder.run("why", answer.headers["x-request-id"], "--text")).code == 1


async def test_a_disk_that_takes_nothing_holds_no_answer_up(
    tmp_path: Path, fast: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recordings, "append", full)
    async with gateway(tmp_path, fast, more=KEEPS) as inferd:
        key = await inferd.new_key("ads")
        for stream in (True, False):
            await asked(inferd, key, MINE, stream=stream)
    dropped = inferd.app.metrics.recordings["ads", "dropped"]
    assert dropped._value.get() == 2
