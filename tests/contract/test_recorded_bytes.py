"""The fake engine's bytes against recorded ones: key order, spacing, escapes, headers, sequence."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import orjson
import pytest

from tests.contract.raw_http import RawAnswer, exchange, post_json
from tests.contract.wire_template import head_template, stream_template, text_template
from tests.fake_engine.recorded import CAPTURES
from tests.fakes.engines import RunningEngine, fake_engine

pytestmark = pytest.mark.real_time

MODEL = "smollm2-135m"
PLAIN = (
    *("chat_nonstream", "chat_n2", "chat_logprobs", "completions", "err_wrong_model"),
    *("chat_stream_usage", "chat_stream_usage_continuous", "completions_stream"),
    *("json_object", "json_schema_compact", "json_schema_stream", "priority_when_disabled"),
    *("err_bad_json", "err_missing_messages", "err_bad_schema", "err_too_long"),
    *("err_stream_too_long", "err_prompt_too_long", "err_prompt_too_long_stream"),
    *("files_endpoint", "batches_endpoint", "get_load", "embeddings_on_gen"),
    *("health", "health_generate", "ready", "ping", "models", "tokenize"),
    *("model_info", "get_model_info", "server_info", "v1_loads_idle", "v1_loads_prom"),
    *("tools_auto", "tools_named", "tools_named_stream", "tools_required", "tools_strict_named"),
    *("tools_strict_required", "tools_strict_single", "tools_strict_stream"),
    *("tools_strict_single_stream", "update_weight_version"),
)
KEYED = ("err_noauth", "noauth_models", "noauth_loads", "noauth_health", "noauth_ready")
# A good model ends a call by itself; the recorded one went on until the limit.


def recorded_request(name: str) -> tuple[str, str, bytes]:
    line, _, body = (CAPTURES / f"{name}.req").read_bytes().partition(b"\n")
    method, path = line.decode().split(" ")
    return method, path, body.strip(b"\n") if method == "POST" else b""


def recorded_answer(name: str) -> RawAnswer:
    head, _, body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")
    return RawAnswer(head.decode(), body, complete=True)


def same_ends(text: str) -> str:
    """Makes answers that end by themselves look like those cut by the length limit."""
    ended = text.replace('"finish_reason":"tool_calls"', '"finish_reason":"length"')
    ended = ended.replace('"finish_reason":"stop"', '"finish_reason":"length"')
    return ended.replace('"matched_stop":N', '"matched_stop":null')


def assert_same_shape(name: str, got: RawAnswer, want: RawAnswer) -> None:
    assert head_template(got.head) == head_template(want.head), name
    if "text/event-stream" in want.head:
        ours = [same_ends(event) for event in stream_template(got.text)]
        theirs = [same_ends(event) for event in stream_template(want.text)]
        assert sorted(set(ours)) == sorted(set(theirs)), name
        assert ours[0] == theirs[0], name
        assert ours[-3:] == theirs[-3:], name
    else:
        ours_text = same_ends(text_template(got.text.rstrip("\n")))
        assert ours_text == same_ends(text_template(want.text.rstrip("\n"))), name


async def replay(engine: RunningEngine, name: str, headers: dict[str, str] | None = None) -> None:
    method, path, body = recorded_request(name)
    got = await exchange(engine.port, method, path, body, headers)
    assert_same_shape(name, got, recorded_answer(name))


@pytest.fixture
def plain_engine(tmp_path: Path) -> AbstractAsyncContextManager[RunningEngine]:
    return fake_engine(
        tmp_path,
        *("--enable-cache-report", "--enable-metrics", "--tool-call-parser", "qwen"),
        *("--model-path", "model", "--max-running-requests", "32", "--enable-priority-scheduling"),
        model=MODEL,
        speed=100,
        standard=False,
    )


async def test_every_recorded_exchange_has_its_shape(
    plain_engine: AbstractAsyncContextManager[RunningEngine],
) -> None:
    async with plain_engine as engine:
        for name in PLAIN:
            await replay(engine, name)


async def test_prompt_tokens_are_the_recorded_ones(
    plain_engine: AbstractAsyncContextManager[RunningEngine],
) -> None:
    """The fake counts like the recorded tokenizer does on plain English."""
    async with plain_engine as engine:
        for name in ("chat_nonstream", "chat_n2", "completions", "tools_auto", "json_object"):
            method, path, body = recorded_request(name)
            got = orjson.loads((await exchange(engine.port, method, path, body)).body)
            want = orjson.loads(recorded_answer(name).body)
            assert got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"], name


async def test_what_a_key_protects(tmp_path: Path) -> None:
    async with fake_engine(
        tmp_path, "--enable-metrics", "--admin-api-key", "adminkey", model=MODEL, api_key="k"
    ) as engine:
        for name in KEYED:
            await replay(engine, name)
        assert (await exchange(engine.port, "GET", "/metrics")).status == 200
        await replay(engine, "admin_with_apikey", {"authorization": "Bearer k"})
        await replay(engine, "admin_with_adminkey", {"authorization": "Bearer adminkey"})


async def test_header_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", "1")
    async with fake_engine(tmp_path, model=MODEL, standard=False) as engine:
        await replay(engine, "override_rid", {"x-override-rid": "gw-123"})
        await replay(engine, "override_bad", {"x-override-priority": "abc"})


def _printed(name: str) -> str:
    """The body of an answer that was recorded as an HTTP client printed it."""
    return (CAPTURES / name).read_text().split("\n", 2)[2]


async def test_abort_ends_like_the_recorded_one(tmp_path: Path) -> None:
    payload = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me of a river"}],
        "max_tokens": 2_000,
        "ignore_eos": True,
    }
    async with fake_engine(tmp_path, model=MODEL, speed=5) as engine, asyncio.TaskGroup() as group:
        for stream in (False, True):
            rid = f"abc-{stream}"
            body = {**payload, "rid": rid, "stream": stream}
            task = group.create_task(post_json(engine.port, "/v1/chat/completions", body))
            await engine.until(running=1)
            await post_json(engine.port, "/abort_request", {"rid": rid})
            got = await task
            if stream:
                want = stream_template(_printed("abort_stream.txt"))
                assert stream_template(got.text) == want
                continue
            want_text = _printed("abort_nonstream.txt").rstrip("\n")
            assert text_template(got.text) == text_template(want_text)


async def test_full_queue_answers_like_the_recorded_one(tmp_path: Path) -> None:
    async with (
        fake_engine(
            tmp_path,
            *("--max-running-requests", "1", "--max-queued-requests", "1"),
            model=MODEL,
        ) as engine,
        asyncio.TaskGroup() as group,
    ):

        def ask(priority: int = 0, *, stream: bool = False) -> asyncio.Task[RawAnswer]:
            body = {
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 400,
                "ignore_eos": True,
                "priority": priority,
                "stream": stream,
            }
            return group.create_task(post_json(engine.port, "/v1/chat/completions", body))

        ask(priority=5)
        await engine.until(running=1)
        evicted = ask()
        await engine.until(waiting=1)
        refused = await ask()
        assert refused.status == 503
        want = (CAPTURES / "queue_full_nonstream.json").read_text().split("\n", 2)[2]
        assert refused.text == want.strip()
        streamed = await ask(stream=True)
        assert streamed.status == 200
        assert streamed.text == _printed("queue_full_stream.txt")[: len(streamed.text)]
        ask(priority=3)
        assert (await evicted).text == (
            (CAPTURES / "queue_full_evicted_low.json").read_text().split("\n")[1]
        )


async def test_metrics_have_recorded_names_labels_and_comments(tmp_path: Path) -> None:
    recorded = recorded_answer("metrics").text
    shapes = {_without_values(line) for line in recorded.splitlines()}
    async with fake_engine(tmp_path, "--enable-metrics", model=MODEL, standard=False) as engine:
        await replay_first(engine)
        got = await exchange(engine.port, "GET", "/metrics")
    assert head_template(got.head) == head_template(recorded_answer("metrics").head)
    fresh = {_without_values(line) for line in got.text.splitlines()}
    assert fresh <= shapes
    for name in ("prompt_tokens_total", "generation_tokens_total", "num_requests_total"):
        assert any(line.startswith(f"sglang:{name}{{") for line in got.text.splitlines()), name


async def replay_first(engine: RunningEngine) -> None:
    for name in ("chat_nonstream", "chat_stream_usage", "v1_loads_idle"):
        method, path, body = recorded_request(name)
        await exchange(engine.port, method, path, body)


def _without_values(line: str) -> str:
    if line.startswith("#") or "{" not in line:
        return line
    name, _, rest = line.partition("{")
    labels = rest.rpartition("}")[0].split(",")
    kept = [label if label.startswith("le=") else label.partition("=")[0] for label in labels]
    return f"{name}{{{','.join(kept)}}}"
