from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engines import fake_engine, free_port
from tests.fakes.inferd_process import Finished, Folder
from tests.fakes.scripted_api import Answer, ScriptedApi, scripted_api, text

KEY = "sk-inferd-" + "k" * 43


def messages(asked: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in asked["messages"]]


async def ask(folder: Folder, api: ScriptedApi, *arguments: str, **more: Any) -> Finished:
    return await folder.run("chat", "--base-url", api.base_url, "--key", KEY, *arguments, **more)


@pytest.mark.real_time
async def test_an_answer_comes_through_the_whole_system(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with fake_engine(tmp_path, model="chat") as engine:
        folder.attach(engine.base_url)
        key = await folder.key()
        async with folder.serving() as serving:
            await serving.until("is ready after")
            keyless = await folder.run("chat", "hello")
            assert keyless.code == 1
            assert "inferd: No API key: set INFERD_API_KEY" in keyless.err

            by_variable = await folder.run("chat", "hello", "there", env={"INFERD_API_KEY": key})
            assert by_variable.code == 0, by_variable.err
            assert by_variable.out.endswith("\n")
            assert len(by_variable.out.split()) > 3

            (tmp_path / ".inferd").mkdir(exist_ok=True)
            (tmp_path / ".inferd" / "first.key").write_text(key + "\n")
            piped = await folder.run("chat", "--max-tokens", "4", stdin="hello\nthere\n")
            assert piped.code == 0, piped.err
            assert len(piped.out.split()) <= 4
            assert "cut off: the answer has as many tokens as it may" in piped.err
            empty = await folder.run("chat", stdin=" \n")
            assert empty.code == 2

            named = await folder.run("chat", "--key-file", "first.key", "-m", "nope", "hello")
            assert named.code == 1
            assert "The model `nope` does not exist" in named.err

            (tmp_path / "first.key").write_text(KEY)
            refused = await folder.run("chat", "--key-file", "first.key", "hello")
            assert refused.code == 1
            assert "`inferd keys create --team TEAM` makes a key." in refused.err

            await engine.fault("crash", after=5)
            broken = await folder.run("chat", "hello")
            assert broken.code == 1
            assert len(broken.out.split()) >= 1
            assert "inferd: The answer broke off: " in broken.err
    for done in (keyless, named, refused, broken):
        assert "Traceback" not in done.err


@pytest.mark.real_time
async def test_tokens_come_one_by_one_and_ctrl_c_frees_the_worker(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with fake_engine(tmp_path, model="chat", speed=1.0) as engine:
        folder.attach(engine.base_url)
        key = await folder.key()
        async with folder.serving() as serving:
            await serving.until("is ready after")
            async with folder.started("chat", "--key", key, "a long story") as chat:
                assert chat.stdout is not None
                assert chat.stderr is not None
                first = await chat.stdout.read(4_096)
                second = await chat.stdout.read(4_096)
                assert (await engine.stats())["running"] == 1
                assert 0 < len(first) + len(second) < 40
                chat.send_signal(signal.SIGINT)
                assert await chat.wait() == 130
                assert await chat.stderr.read() == b""
            await engine.until(running=0)


@pytest.mark.real_time
async def test_it_waits_for_a_worker_that_is_loading(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn("--fault", json.dumps({"kind": "slow_load", "seconds": 2, "progress": True}))
    key = await folder.key()
    async with folder.serving():
        done = await folder.run("chat", "--key", key, "hello")
        assert done.code == 0, done.err
        assert done.err == "chat is loading; waiting for it (Ctrl-C stops waiting) ...\n"
        assert len(done.out.split()) > 3


@pytest.mark.real_time
async def test_a_worker_that_is_lost_between_two_looks_is_waited_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with scripted_api() as api:
        gone = {"message": "No worker of `x` is ready.", "code": "no_worker"}
        refusal = Answer(status=503, error=gone, headers={"retry-after": "10"})
        api.answers = [refusal, Answer(text("Hi"))]
        api.states = ["ready", "unavailable", "loading"]
        done = await ask(folder, api, "hello")
        assert (done.code, done.out) == (0, "Hi\n")
        assert [line.split(";")[0] for line in done.err.splitlines()] == [
            "scripted is unavailable",
            "scripted is loading",
        ]


@pytest.mark.real_time
async def test_options_are_asked_for_and_others_left_to_the_server(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with scripted_api() as api:
        api.answers = [Answer(text("A")), Answer(text("B"))]
        await ask(folder, api, "hello")
        await ask(
            folder, api, "-m", "fast", "--system", "Be brief.", "--max-tokens", "7",
            "--temperature", "0.5", "hello", "you",
        )  # fmt: skip
        plain, full = api.asked
        always = {"stream": True, "stream_options": {"include_usage": True}}
        said = [{"role": "user", "content": "hello"}]
        assert plain == {"model": "scripted", "messages": said, **always}
        assert messages(full) == [("system", "Be brief."), ("user", "hello you")]
        assert (full["model"], full["max_completion_tokens"], full["temperature"]) == (
            "fast",
            7,
            0.5,
        )


@pytest.mark.real_time
async def test_a_pipe_gets_the_answer_alone_byte_for_byte(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with scripted_api() as api:
        thought = {"choices": [{"delta": {"reasoning_content": "hmm"}}]}
        api.answers = [Answer([thought, *text("a\x1b[31m", "é\n", "b")])]
        done = await ask(folder, api, "hello")
        assert (done.code, done.out, done.err) == (0, "a\x1b[31mé\nb\n", "")


@pytest.mark.real_time
async def test_what_goes_wrong_is_told_in_words(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with scripted_api() as api:
        full = {"message": "The queue is full.", "code": "overloaded"}
        api.answers = [
            Answer(status=429, error=full, headers={"retry-after": "3"}),
            Answer(text("half")[:1], done=False),
            Answer([{"choices": [{"delta": {"content": "x"}}]}, {"error": {"message": "Lost."}}]),
            Answer([{"error": "as text"}]),
        ]
        busy, cut, failed, odd = [await ask(folder, api, "hello") for _ in range(4)]
        assert busy.err == "inferd: The queue is full. Try again in 3 s.\n"
        assert (cut.out, cut.err) == (
            "half\n",
            "inferd: The answer broke off before its end. Ask again.\n",
        )
        assert (failed.out, failed.err) == ("x\n", "inferd: The answer broke off: Lost.\n")
        assert odd.err == "inferd: The answer broke off: as text\n"
        api.base_url = f"http://127.0.0.1:{free_port()}/v1"
        nobody = await ask(folder, api, "hello")
        assert nobody.err.startswith(f"inferd: Nothing answers at {api.base_url}")
        assert "inferd serve" in nobody.err
        api.base_url = "nonsense"
        nonsense = await ask(folder, api, "hello")
        assert "no URL; --base-url wants http://host:port/v1" in nonsense.err
    other = await _ask_something_else(folder)
    assert "is no OpenAI-compatible API" in other.err
    for done in (busy, cut, failed, odd, nobody, nonsense, other):
        assert done.code == 1
        assert "Traceback" not in done.err


async def _ask_something_else(folder: Folder) -> Finished:
    """Ask a server that knows nothing of chats."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        base_url = f"http://127.0.0.1:{port}/v1"
        return await folder.run("chat", "--base-url", base_url, "--key", KEY, "hello")


@pytest.mark.real_time
async def test_the_address_is_that_of_the_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    missing = await folder.run("chat", "--key", KEY, "hello")
    assert "inferd.toml: no such file" in missing.err
    folder.config.write_text('[server]\nlisten = "0.0.0.0:0"\n')
    portless = await folder.run("chat", "--key", KEY, "hello")
    assert "server.listen names no port: give --base-url" in portless.err
    folder.config.write_text('[server]\nlisten = "here"\n')
    wrong = await folder.run("chat", "--key", KEY, "hello")
    assert "server.listen: must be address:port" in wrong.err
    folder.config.write_text(f'[server]\nlisten = "0.0.0.0:{folder.port}"\n')
    stopped = await folder.run("chat", "--key", KEY, "hello")
    assert f"Nothing answers at http://127.0.0.1:{folder.port}/v1" in stopped.err
    wrong_key = await folder.run("chat", "--key", "two words", "hello")
    assert "--key or INFERD_API_KEY holds no API key" in wrong_key.err


@pytest.mark.real_time
async def test_a_conversation(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with scripted_api() as api:
        thought = {"choices": [{"delta": {"reasoning_content": "hm\x07m"}}]}
        long = {"message": "Too long.", "code": "context_length_exceeded"}
        api.answers = [
            Answer([thought, *text("Good ", "day\x1b[31m!")]),
            Answer(status=400, error=long),
            Answer(text("Once upon")[:1], hangs=True),
            Answer(text("The end.")),
            Answer(text("Anew.")),
        ]
        arguments = ["chat", "--base-url", api.base_url, "--key", KEY, "--system", "S"]
        async with folder.in_terminal(*arguments) as terminal:
            at = await terminal.until("Ctrl-D leaves.")
            at = await terminal.until("> ", after=at)
            terminal.type("hello\n")
            # What a model writes cannot drive the terminal.
            at = await terminal.until("hmmGood day[31m!", after=at)
            at = await terminal.until("2 tokens, the first after", after=at)
            terminal.type("/nope\n")
            at = await terminal.until("There is no /nope.", after=at)
            terminal.type("/help\n")
            at = await terminal.until("/reset  forget", after=at)
            terminal.type("too much\n")
            at = await terminal.until("inferd: Too long.", after=at)
            terminal.type("a story\n")
            at = await terminal.until("Once upon", after=at)
            terminal.interrupt()
            at = await terminal.until("(stopped)", after=at)
            await api.left.wait()
            at = await terminal.until("> ", after=at)
            at = await terminal.interrupt_until("Ctrl-D leaves.", after=at)
            terminal.type("go on\n")
            at = await terminal.until("The end.", after=at)
            terminal.type("/reset\n")
            at = await terminal.until("Forgotten.", after=at)
            terminal.type("again\n")
            at = await terminal.until("Anew.", after=at)
            at = await terminal.until("> ", after=at)
            terminal.type("\x04")
            assert await terminal.end() == 0
            assert "Traceback" not in terminal.text
        greeting = [("system", "S"), ("user", "hello")]
        assert messages(api.asked[0]) == greeting
        so_far = [*greeting, ("assistant", "Good day\x1b[31m!")]
        assert messages(api.asked[1]) == [*so_far, ("user", "too much")]
        assert messages(api.asked[2]) == [*so_far, ("user", "a story")]
        assert messages(api.asked[3]) == [
            *so_far,
            ("user", "a story"),
            ("assistant", "Once upon"),
            ("user", "go on"),
        ]
        assert messages(api.asked[4]) == [("system", "S"), ("user", "again")]
