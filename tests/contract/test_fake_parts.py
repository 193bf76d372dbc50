"""The fake's own arithmetic: tokens, KV memory, cost model, answers that fit a schema."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.client import Client
from tests.contract.raw_http import encode_request, exchange
from tests.fake_engine.answers import Direction, fixed, prose, take
from tests.fake_engine.cache import KvCache
from tests.fake_engine.conforming import Filler, UnsupportedSchema
from tests.fake_engine.cost import PROFILES
from tests.fake_engine.tokens import chat_prompt, cut, encode, shown, tokens
from tests.fakes.engines import fake_engine, launch_fake, standing


@given(st.text())
def test_pieces_give_the_text_back(text: str) -> None:
    assert "".join(cut(text)) == text
    assert shown(list(tokens(text))) == text
    assert [token.id for token in tokens(text)] == encode(text)


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from(["", "emoji", "Thai"]))
def test_an_answer_sent_back_gives_its_tokens_again(seed: int, count: int, wish: str) -> None:
    said = take(prose(seed, Direction.read(wish)), count)
    again = encode(shown(said))
    # A character that was cut inside its tokens shows nothing, so at most its last ones miss.
    assert [token.id for token in said][: len(again)] == again
    assert len(said) - len(again) <= 2


def test_a_second_turn_starts_with_the_first_and_its_answer() -> None:
    question = {"role": "user", "content": "Why is the sea salt?"}
    first = chat_prompt([question])
    said = take(fixed("Rivers carry salt.", 1), 4)
    history = [question, {"role": "assistant", "content": shown(said)}]
    second = chat_prompt([*history, {"role": "user", "content": "Really?"}])
    known = [*first, *(token.id for token in said)]
    assert second[: len(known)] == known


def test_a_token_is_a_word_a_digit_or_punctuation() -> None:
    assert cut("Count to 30, (please)!") == [
        "Count",
        " to",
        " ",
        "3",
        "0",
        ",",
        " (",
        "please",
        ")!",
    ]
    assert len(encode("ไ")) == 2
    assert len(encode("😀")) == 2
    assert len(encode("é")) == 1


Step = tuple[str, int]


@given(
    st.lists(st.tuples(st.sampled_from(["start", "end"]), st.integers(0, 7)), max_size=60),
    st.sampled_from([1, 4]),
)
def test_kv_memory_never_overflows_and_comes_back(steps: list[Step], page: int) -> None:
    cache = KvCache(64, page)
    running: list[tuple[list[int], int]] = []
    for action, number in steps:
        if action == "start":
            prompt = [number % 3] * 8 + list(range(number * 3))
            names = cache.names(prompt, "")
            blocks = names[: cache.match(names)]
            cache.hold(blocks)
            wanted = len(prompt) - len(blocks) * page
            if not cache.take(wanted):
                cache.release(blocks)
                continue
            fresh = names[len(blocks) :]
            cache.share(fresh)
            running.append((blocks + fresh, wanted - len(fresh) * page))
        elif running:
            held, private = running.pop(number % len(running))
            cache.give(private)
            cache.release(held)
        assert cache.free >= 0
        assert cache.used + cache.evictable + cache.free == 64
    for held, private in running:
        cache.give(private)
        cache.release(held)
    assert cache.used == 0


def test_eviction_takes_the_deepest_of_the_oldest_first() -> None:
    cache = KvCache(8, 1)
    old, new = cache.names([1, 2, 3, 4], ""), cache.names([9, 8, 7], "")
    for names in (old, new):
        assert cache.take(len(names))
        cache.share(names)
        cache.release(names)
    assert cache.take(3)
    assert cache.match(old) == 2
    assert cache.match(new) == 3


def test_isolation_keys_name_blocks_apart() -> None:
    cache = KvCache(8, 1)
    assert set(cache.names([1, 2], "a")).isdisjoint(cache.names([1, 2], "b"))


@pytest.mark.parametrize(
    ("profile", "decodes", "milliseconds"),
    [("8b", 1, 6.7), ("8b", 128, 18.6), ("8b", 256, 30.6), ("70b", 64, 13.3), ("70b", 256, 24.2)],
)
def test_decode_steps_are_the_measured_ones(
    profile: str, decodes: int, milliseconds: float
) -> None:
    step_s = PROFILES[profile].step_s(0, decodes, decodes * 2_048, 0)
    assert step_s * 1_000 == pytest.approx(milliseconds, rel=0.01)


def test_a_prefill_chunk_adds_to_its_step() -> None:
    alone = PROFILES["70b"].step_s(2_048, 0, 0, 2_048 * 1_024)
    assert alone * 1_000 == pytest.approx(96.6, rel=0.01)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 3},
        {"type": "string", "minLength": 20, "maxLength": 24},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "string"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"const": 5}}},
        {"allOf": [{"type": "number"}, {"minimum": 2, "maximum": 2.5}]},
        {"type": "string", "format": "date"},
        {"type": ["null", "string"]},
    ],
)
def test_a_filled_schema_is_json_and_the_same_each_time(schema: dict[str, Any]) -> None:
    text = Filler(schema, 7).text()
    orjson.loads(text)
    assert Filler(schema, 7).text() == text


def test_what_is_no_type_is_refused() -> None:
    with pytest.raises(UnsupportedSchema, match='Unsupported type "nonsense"'):
        Filler({"type": "nonsense"}, 0).text()


@pytest.mark.real_time
async def test_too_little_memory_retracts_and_finishes_everything(tmp_path: Path) -> None:
    """Twelve sequences of 230 tokens in 1,000 slots: some must give way and come back."""
    flags = ("--max-total-tokens", "1000", "--context-length", "900")
    async with fake_engine(tmp_path, *flags, speed=200) as engine:
        client = Client(engine.process)
        bodies = [
            client.chat(f"Sequence {one} of many", max_tokens=200, ignore_eos=True)
            for one in range(12)
        ]
        answers = await asyncio.gather(*(client.told(body) for body in bodies))
        assert all(told.usage["completion_tokens"] == 200 for told in answers)
        assert all(told.done for told in answers)
        stats = await engine.until(running=0)
        assert stats["kv_used"] == 0
        assert stats["retractions"] > 0
        assert stats["completion_tokens"] == 2_400


@pytest.mark.real_time
async def test_the_same_prompt_says_the_same(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        client = Client(engine.process)
        body = client.chat("Say something [tokens 30]")
        first, second = await client.told(body), await client.told(body)
        other = await client.told(client.chat("Say something else [tokens 30]"))
        assert first.text == second.text != other.text
        assert first.usage["completion_tokens"] == 31
        said = await client.told(client.chat("[say Exactly this, 1 time.]"))
        assert said.text == "Exactly this, 1 time."


@pytest.mark.real_time
async def test_a_stop_string_ends_the_answer_before_it(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        client = Client(engine.process)
        body = client.chat("[say one two three four]", stop=["three"])
        told = await client.told(body)
        assert told.text == "one two "
        assert told.finish == "stop"
        assert told.chunks[-2]["choices"][0]["matched_stop"] == "three"


@pytest.mark.real_time
async def test_the_supervisors_command_line_is_understood(tmp_path: Path) -> None:
    """The key from a file, chunks of several tokens, flags that only the real engine knows."""
    config = tmp_path / "engine.yaml"
    config.write_text('{"api-key": "from-the-file"}')
    process = launch_fake(
        tmp_path,
        *("--config", str(config), "--stream-interval", "4", "--tp-size", "8", "--device", "cuda"),
        *("--skip-server-warmup", "--sleep-on-idle", "--log-level-http", "warning"),
    )
    with standing(process):
        assert (await exchange(process.port, "GET", "/v1/models")).status == 401
        client = Client(replace(process, api_key="from-the-file"))
        body = client.chat("[say one two three four five six seven eight nine ten]")
        told = await client.told(body)
        assert told.texts == ["one", " two three four five", " six seven eight nine", " ten"]
        core = orjson.loads((await client.get("/v1/loads?include=core")).body)["loads"][0]
        assert "memory" not in core
        assert core["max_total_num_tokens"] == 16_384


@pytest.mark.real_time
async def test_text_that_may_become_a_stop_string_waits(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        client = Client(engine.process)
        told = await client.told(client.chat("[say a b c d e f]", stop=[" c e", " d e"]))
        assert told.texts == ["a", " b", " c"]


@pytest.mark.real_time
async def test_an_idle_connection_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TIMEOUT_KEEP_ALIVE", "0.2")
    async with fake_engine(tmp_path) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(encode_request("GET", "/ready"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.read() == b""
        writer.close()
