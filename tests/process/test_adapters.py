"""LoRA adapters through a whole inferd. Goal: no answer by another adapter, or by one removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.engines import free_port
from tests.fakes.engines_left import none_left
from tests.fakes.inferd_process import TEXT, Folder
from tests.fakes.installed_engine import install_fake_engine, make_model
from tests.fakes.lora_folder import make_adapter

pytestmark = pytest.mark.real_time

VERSION = """\
weights = "model"

[models.versions.engine]
device = "cpu"

[models.versions.engine.lora]
rank_max = 8

[models.versions.workers]
count = 2
"""


def write(folder: Folder, admin_port: int, **adapters: str) -> None:
    version = VERSION + "".join(
        f'\n[[models.versions.adapters]]\nname = "{name}"\nweights = "{weights}"\n'
        for name, weights in adapters.items()
    )
    folder.config.write_text(
        TEXT.format(port=folder.port, admin_port=admin_port, version=version, server="")
    )


def prepared(tmp_path: Path, third: str) -> tuple[Folder, int]:
    """Adapters sql and mail are served; another one is there. The admin listener's port."""
    folder, admin_port = Folder(tmp_path), free_port()
    install_fake_engine(tmp_path / "engine")
    make_model(tmp_path / "model")
    for number, name in enumerate(("sql", "mail", third)):
        make_adapter(tmp_path / name, seed=number)
    write(folder, admin_port, sql="sql", mail="mail")
    return folder, admin_port


class Client:
    def __init__(self, folder: Folder, key: str, http: aiohttp.ClientSession) -> None:
        self._url = folder.base_url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._http = http

    async def ask(self, model: str) -> tuple[int, dict[str, Any]]:
        body = {"model": model, "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 9}
        url = f"{self._url}/chat/completions"
        async with self._http.post(url, json=body, headers=self._headers) as answer:
            return answer.status, await answer.json()

    async def says(self, model: str) -> str:
        status, body = await self.ask(model)
        assert status == 200, body
        assert body["model"] == model
        text = body["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text


async def test_adapters_come_and_go_while_they_are_asked_for(tmp_path: Path) -> None:
    folder, admin_port = prepared(tmp_path, "sql-2")
    key = await folder.key()
    async with folder.serving() as serving, aiohttp.ClientSession() as http:
        await serving.until("is ready after")
        client = Client(folder, key, http)
        for number in range(100):
            name = ("sql", "mail")[number % 2]
            assert await client.says(name) == f"I am {name}."
            assert "I am" not in await client.says("chat")
        assert (await client.ask("chat:sql"))[0] == (await client.ask("legal"))[0] == 404

        shown = json.loads((await folder.run("pools", "--json")).out)
        assert [one["name"] for one in shown[0]["adapters"]] == ["sql", "mail"]
        table = [" ".join(line.split()) for line in (await folder.run("pools")).out.splitlines()]
        assert any(line.startswith("sql adapter loaded") for line in table)

        async with aiohttp.ClientSession() as more, asyncio.TaskGroup() as group:
            other = Client(folder, key, more)
            running = [group.create_task(other.ask("mail")) for _ in range(16)]
            write(folder, admin_port, sql="sql-2")
            done = await folder.run("reload")
            assert done.code == 0, done.err
            assert "adapter mail (mail) is removed" in done.out
            for status, body in [await one for one in running]:
                assert status in (200, 404), body
        for _ in range(20):
            assert await client.says("sql") == "I am sql-2."
            status, body = await client.ask("mail")
            assert (status, body["error"]["code"]) == (404, "model_not_found")
        url = f"{folder.base_url}/models"
        async with http.get(url, headers={"Authorization": f"Bearer {key}"}) as answer:
            listed = {one["id"]: one["parent"] for one in (await answer.json())["data"]}
        assert listed == {"chat": None, "sql": "chat"}
        usage = await folder.run("status", "--json")
        workers = json.loads(usage.out)["pools"][0]["workers"]
        assert all(worker["adapters"] == {"sql": "loaded"} for worker in workers)

        write(folder, admin_port, sql="nothing")
        refused = await folder.run("reload")
        assert refused.code == 1
        assert "adapters[0].weights" in refused.err
        assert await client.says("sql") == "I am sql-2."


async def test_a_killed_inferd_finds_engines_with_their_adapters_again(tmp_path: Path) -> None:
    folder, admin_port = prepared(tmp_path, "law")
    key = await folder.key()
    with none_left(tmp_path):
        async with folder.serving() as serving, aiohttp.ClientSession() as http:
            await all_ready(folder)
            client = Client(folder, key, http)
            assert await client.says("sql") == "I am sql."
            assert await client.says("mail") == "I am mail."
            before = await pids(folder)
            serving.process.kill()
            await serving.process.wait()
        write(folder, admin_port, sql="sql", law="law")
        async with folder.serving() as serving, aiohttp.ClientSession() as http:
            await all_ready(folder)
            assert await pids(folder) == before
            client = Client(folder, key, http)
            async with asyncio.timeout(20):
                while (status := (await client.ask("law"))[0]) != 200:
                    assert status in (429, 503), "not before an engine has loaded it"
            for _ in range(10):
                assert await client.says("sql") == "I am sql."
                assert await client.says("law") == "I am law."
                assert "I am" not in await client.says("chat")
                assert (await client.ask("mail"))[0] == 404, "it was removed meanwhile"
            done = await serving.stop()
    assert done.code == 0, done.err


async def all_ready(folder: Folder) -> None:
    async with asyncio.timeout(30):
        while any(one["state"] != "ready" for one in await workers(folder)):
            pass


async def workers(folder: Folder) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((await folder.run("workers", "list", "--json")).out)
    return found


async def pids(folder: Folder) -> set[int]:
    return {one["pid"] for one in await workers(folder)}
