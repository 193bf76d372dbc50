from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.fakes.engines import fake_engine
from tests.fakes.inferd_process import Finished, Folder


def no_traceback(done: Finished) -> bool:
    return "Traceback" not in done.out + done.err


async def output_of(*command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.mark.real_time
async def test_what_hello_shows_can_be_pasted(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with fake_engine(tmp_path, model="chat") as engine:
        folder.attach(engine.base_url)
        key = await folder.key()
        async with folder.serving("--hello", "first.key") as serving:
            await serving.until("Next, in another shell")
            assert f"Base URL: {folder.base_url}" in serving.said
            assert f"API key:  {key} (team search)" in serving.said
            assert "Models:   chat" in serving.said

            curl = re.search(r"^curl .*?\n\n", serving.said, re.DOTALL | re.MULTILINE)
            assert curl is not None
            code, answer = await output_of("bash", "-c", curl[0])
            assert code == 0, answer
            assert "chat.completion.chunk" in answer
            assert "data: [DONE]" in answer

            program = re.search(
                r"^from openai.*?\n\n.*?\n\n", serving.said, re.DOTALL | re.MULTILINE
            )
            assert program is not None
            code, answer = await output_of(sys.executable, "-W", "ignore", "-c", program[0])
            assert code == 0, answer
            assert len(answer.split()) > 3
            done = await serving.stop()
    assert done.code == 0, done.err
    assert "Stopping. Running requests may finish within 60 s" in done.out
    assert done.out.endswith("inferd has stopped.\n")
    records = [json.loads(line) for line in done.err.splitlines()]
    assert any(record["msg"] == "stopping" for record in records)
    assert key not in done.err


@pytest.mark.real_time
async def test_a_terminal_shows_the_start_and_keeps_the_log_in_a_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn("--fault", json.dumps({"kind": "slow_load", "seconds": 1.5, "progress": True}))
    async with folder.in_terminal("serve") as terminal:
        await terminal.until(f"Logs go to {folder.state / 'inferd.log'}")
        await terminal.until(f"inferd listens at http://127.0.0.1:{folder.port}")
        await terminal.until("chat-1-1 loading")
        await terminal.until("loading weights: Loading safetensors checkpoint shards")
        await terminal.until("chat-1-1 is ready after")
        await terminal.until("Next, in another shell")
        terminal.interrupt()
        await terminal.until("Stopping.")
        await terminal.until("inferd has stopped.")
        assert await terminal.end() == 0
        assert '"level"' not in terminal.text
    records = [json.loads(line) for line in (folder.state / "inferd.log").read_text().splitlines()]
    assert {"worker chat-1-1 is loading", "worker chat-1-1 is ready"} <= {
        record["msg"] for record in records
    }


@pytest.mark.real_time
async def test_a_worker_that_fails_is_told_with_the_reason_and_what_comes_next(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path)
    fault = {"kind": "exit_at_start", "message": "torch.OutOfMemoryError: CUDA out of memory."}
    folder.spawn("--fault", json.dumps(fault), workers="restarts_per_hour_max = 0")
    async with folder.serving() as serving:
        failed = await serving.until("chat-1-1 failed:")
        assert "the GPU has too little memory: lower engine.kv_tokens_max" in failed
        then = await serving.until("given up")
        assert "inferd logs chat-1-1" in then
        done = await serving.stop()
    assert done.code == 0, done.err


@pytest.mark.real_time
async def test_a_closed_output_does_not_stop_the_server(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    read, write = os.pipe()
    async with fake_engine(tmp_path, model="chat", wait=False) as engine:
        folder.attach(engine.base_url)
        key = await folder.key()
        os.close(read)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "inferd", "serve"),
            cwd=tmp_path,
            env=folder._environment(None),
            stdout=write,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(write)
        try:
            while (await folder.run("status")).code:
                assert process.returncode is None
            answer = await folder.run("chat", "--key", key, "hello")
            assert answer.code == 0, answer.err
        finally:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


@pytest.mark.real_time
async def test_a_taken_port_is_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", folder.port)):
        done = await folder.run("serve")
    assert done.code == 1
    assert f"server.listen: 127.0.0.1:{folder.port} is taken by another process" in done.err
    assert no_traceback(done)


@pytest.mark.real_time
async def test_a_second_server_on_a_state_folder_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    async with folder.serving() as serving:
        done = await folder.run("serve")
        assert done.code == 1
        assert f"state is in use by inferd serve (process {serving.process.pid})" in done.err
        assert no_traceback(done)


@pytest.mark.real_time
async def test_what_keeps_it_from_starting_is_told_before_anything_starts(tmp_path: Path) -> None:
    folder = Folder(tmp_path)

    missing = await folder.run("serve")
    assert missing.code == 1
    assert "inferd.toml: no such file; `inferd init" in missing.err

    folder.write('weights = "model"\nfoo = 1\nattached = 5')
    broken = await folder.run("serve")
    assert broken.code == 1
    assert len(broken.err.splitlines()) >= 2
    assert all(line.startswith("inferd.toml:") for line in broken.err.splitlines())

    folder.write('weights = "model"\nengine = { device = "cpu" }')
    bare = await folder.run("serve")
    assert bare.code == 1
    assert "no engine is installed in" in bare.err
    assert "inferd engine install" in bare.err

    shutil.rmtree(folder.path / "engine", ignore_errors=True)
    folder.spawn()
    (folder.path / "model" / "tokenizer.json").unlink()
    incomplete = await folder.run("serve")
    assert incomplete.code == 1
    assert "the tokenizer is missing" in incomplete.err

    keyless = await folder.run("serve", "--hello", "no.key")
    assert keyless.code == 1
    assert "no.key: there is no such file; `inferd keys ensure" in keyless.err

    for done in (missing, broken, bare, incomplete, keyless):
        assert no_traceback(done)
        assert done.out == ""


@pytest.mark.real_time
async def test_hello_with_a_key_of_elsewhere_says_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "old.key").write_text("sk-inferd-" + "x" * 43)
    async with fake_engine(tmp_path, model="chat") as engine:
        folder.attach(engine.base_url)
        async with folder.serving("--hello", "old.key") as serving:
            line = await serving.until("is not accepted here")
            assert "keys ensure --team TEAM --file old.key" in line
