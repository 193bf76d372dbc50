"""Whose prompts a team may find in an engine's cache: its own, unless the pool says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import TEAM, Gateway, gateway
from tests.http.raw_connection import ask, chat

pytestmark = pytest.mark.real_time

OTHER = '[[teams]]\nname = "mail"\n'
LONG = "The same long opening of a prompt, word for word. " * 40


async def cached(inferd: Gateway, key: str, question: str) -> int:
    answer = await ask(
        inferd, chat(LONG + question, max_tokens=2), {"Authorization": f"Bearer {key}"}
    )
    assert answer.status == 200, answer.body
    tokens = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(tokens, int)
    return tokens


async def test_teams_do_not_find_each_others_prompts_unless_the_pool_is_shared(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, more=OTHER) as inferd:
        mail = await inferd.new_key("mail")
        alone = await cached(inferd, inferd.key, "one?")
        own = await cached(inferd, inferd.key, "two?")
        others = await cached(inferd, mail, "three?")

        path = tmp_path / "inferd.toml"
        shared_scope = '\nversion = "1"\ncache_scope = "shared"'
        path.write_text(path.read_text().replace('\nversion = "1"', shared_scope))
        changes = await inferd.app.node.reload()
        first = await cached(inferd, inferd.key, "four?")
        shared = await cached(inferd, mail, "five?")
        sent = (await inferd.engine.stats())["requests"]
    assert [type(change).__name__ for change in changes] == ["CacheScopeChanged"]
    assert alone < own
    assert others < own
    assert first < shared
    keys = [request["body"].get("extra_key") for request in sent[-5:]]
    assert keys == [TEAM, TEAM, "mail", None, None]
