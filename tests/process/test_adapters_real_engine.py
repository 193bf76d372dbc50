"""LoRA adapters on the real engine. Goal: each answer is by the adapter that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.lora_folder import adapters_table
from tests.fakes.served import MODEL, Served, ServeProcess, command, using

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=420)]

TURNS = 200


async def ask(inferd: Served, model: str) -> tuple[int, dict[str, Any]]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me of rivers, hills and old maps."}],
        "max_tokens": 2,
        "temperature": 0,
    }
    url, headers = f"{inferd.base_url}/chat/completions", {"Authorization": f"Bearer {inferd.key}"}
    async with inferd.http.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def said(inferd: Served, model: str) -> str:
    status, body = await ask(inferd, model)
    assert status == 200, body
    assert body["model"] == model
    text = body["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


async def reload(inferd: Served, **adapters: str) -> None:
    config = inferd.folder / "inferd.toml"
    head, _, rest = config.read_text().partition("[models.versions.engine.lora]")
    tail = rest[rest.index("[[teams]]") :]
    config.write_text(f"{head}{adapters_table(**adapters)}\n{tail}")
    code, _, err = await command(inferd.folder, "reload")
    assert code == 0, err


async def test_two_adapters_in_turn_with_a_reload_between(whole_inferd: ServeProcess) -> None:
    async with using(whole_inferd) as inferd:
        names = (MODEL, "one", "two")
        for name in names:
            await said(inferd, name)  # what comes after it has the prompt in the cache
        known = {name: await said(inferd, name) for name in names}
        assert len(set(known.values())) == 3, known
        for turn in range(TURNS // 2):
            name = ("one", "two")[turn % 2]
            assert await said(inferd, name) == known[name], turn

        await reload(inferd, one="a", two="c")
        await said(inferd, "two")
        third = await said(inferd, "two")
        assert third not in known.values()
        for turn in range(TURNS // 2):
            name = ("one", "two")[turn % 2]
            assert await said(inferd, name) == (known["one"], third)[turn % 2], turn
        assert await said(inferd, MODEL) == known[MODEL]

        await reload(inferd, two="c")
        status, body = await ask(inferd, "one")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await ask(inferd, f"{MODEL}:one"))[0] == 404
        assert await said(inferd, "two") == third
        worker = await inferd.worker()
        assert worker["adapters"] == {"two": "loaded"}

        await inferd.killed_and_started_again()
        again = await inferd.until_ready()
        assert again["pid"] == worker["pid"], "the engine is taken over with what it holds"
        assert await said(inferd, "two") == third
        assert await said(inferd, MODEL) == known[MODEL]
        assert (await ask(inferd, "one"))[0] == 404
        await inferd.written()
        rows = [row for row in inferd.rows() if row.team == "demo"]
        assert sum(row.model == "one" for row in rows) == TURNS // 2 + 2
        assert {row.model for row in rows} == {MODEL, "one", "two"}
