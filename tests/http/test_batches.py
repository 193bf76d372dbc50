"""Batches as clients use them: the SDK's calls, the shapes of answers, who sees what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from inferd.api.openapi import document
from inferd.inference import Priority
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, Gateway, gateway

pytestmark = pytest.mark.real_time
ENDS_S = 30.0
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def serving(folder: Path, engine: EngineProcess, **more: Any) -> AsyncIterator[Gateway]:
    sections = '[files]\nstore = "files"\n[[teams]]\nname = "ads"\n'
    async with gateway(folder, engine, more=sections, **more) as inferd:
        yield inferd


def line(number: int, text: str = "[tokens 5]", **body: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": f"id-{number}", "method": "POST", "url": CHAT, "body": asked}


def encoded(*lines: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(one) + b"\n" for one in lines)


async def submitted(client: openai.AsyncOpenAI, data: bytes, **more: Any) -> Any:
    file = await client.files.create(file=("lines.jsonl", data), purpose="batch")
    asked: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **more}
    return await client.batches.create(input_file_id=file.id, **asked)


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(ENDS_S):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status in {"completed", "failed", "expired", "cancelled"}:
                return batch
            await asyncio.sleep(0.05)


async def test_a_batch_from_upload_to_results(tmp_path: Path, fast: EngineProcess) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        wrong = line(98, temperature=99)
        tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
        tools = line(99, "[tool look]", tools=[tool], tool_choice="auto")
        data = encoded(*map(line, range(12)), wrong, tools)
        created = await submitted(
            client,
            data,
            metadata={"run": "nightly"},
            extra_body={"output_expires_after": {"anchor": "created_at", "seconds": 3_600}},
        )
        assert created.status == "validating"
        assert created.expires_at == created.created_at + 86_400
        batch = await ended(client, created.id)
        assert batch.status == "completed", batch
        assert batch.request_counts.model_dump() == {"total": 14, "completed": 13, "failed": 1}
        assert batch.metadata == {"run": "nightly"}
        assert batch.model == MODEL
        output = (await client.files.content(batch.output_file_id)).text
        results = {one["custom_id"]: one for one in map(orjson.loads, output.splitlines())}
        assert set(results) == {f"id-{number}" for number in (*range(12), 99)}
        body = results["id-3"]["response"]["body"]
        assert body["object"] == "chat.completion"
        assert body["usage"]["completion_tokens"] == 6
        call = results["id-99"]["response"]["body"]["choices"][0]["message"]["tool_calls"][0]
        assert call["function"]["name"] == "look"
        (error,) = map(
            orjson.loads, (await client.files.content(batch.error_file_id)).text.splitlines()
        )
        assert error["custom_id"] == "id-98"
        assert error["response"]["status_code"] == 400
        assert error["response"]["body"]["error"]["param"] == "temperature"
        file = await client.files.retrieve(batch.output_file_id)
        assert file.purpose == "batch_output"
        assert file.expires_at is not None
        rows = {row.request_id: row for row in await inferd.rows()}
        assert len(rows) == 14
        assert {row.priority for row in rows.values()} == {Priority.BATCH}
        assert batch.usage.input_tokens == sum(row.prompt_tokens for row in rows.values())
        assert batch.usage.output_tokens == sum(row.completion_tokens for row in rows.values())
        told = await inferd.metrics()
        assert 'inferd_batch_lines_total{outcome="completed",team="search"} 13.0' in told
        assert 'inferd_batches_total{status="completed"} 1.0' in told


async def test_a_wrong_file_is_told_line_by_line(tmp_path: Path, fast: EngineProcess) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        data = encoded(line(1), line(1), line(2, stream=True), line(3, model="nobody"))
        batch = await ended(client, (await submitted(client, data)).id)
        assert batch.status == "failed"
        assert [(one.code, one.line, one.param) for one in batch.errors.data] == [
            ("duplicate_custom_id", 2, "custom_id"),
            ("streaming_unsupported", 3, "body.stream"),
            ("model_not_found", 4, "body.model"),
        ]
        assert batch.failed_at is not None
        assert await inferd.rows() == []


async def test_the_input_may_be_deleted_while_it_runs(tmp_path: Path, fast: EngineProcess) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        created = await submitted(client, encoded(*map(line, range(30))))
        async with asyncio.timeout(ENDS_S):
            while (await client.batches.retrieve(created.id)).status == "validating":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await client.files.delete(created.input_file_id)
        batch = await ended(client, created.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 30)


async def test_inputs_may_be_deleted_before_they_are_checked(
    tmp_path: Path, fast: EngineProcess
) -> None:
    data = encoded(*map(line, range(30)))
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        made = []
        for _ in range(4):
            made.append(await submitted(client, data))
            await client.files.delete(made[-1].input_file_id)
        for one in made:
            batch = await ended(client, one.id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 30)
            await client.files.delete(batch.output_file_id)
        store = inferd.app.node.files
        assert store.held("search").files == 0
        await store.sweep()
        assert not [one for one in (tmp_path / "files").rglob("*") if one.is_file()]


async def test_cancel_over_http(tmp_path: Path, fast: EngineProcess) -> None:
    async with serving(tmp_path, fast, slots=2) as inferd, inferd.openai() as client:
        slow = encoded(*(line(number, "[tokens 300]") for number in range(50)))
        created = await submitted(client, slow)
        cancelling = await client.batches.cancel(created.id)
        assert cancelling.status == "cancelling"
        assert cancelling.cancelling_at is not None
        batch = await ended(client, created.id)
        assert batch.status == "cancelled"
        assert (await client.batches.cancel(created.id)).status == "cancelled"
        done = await ended(client, (await submitted(client, encoded(line(1)))).id)
        with pytest.raises(openai.ConflictError, match="status 'completed'") as caught:
            await client.batches.cancel(done.id)
        assert caught.value.response.headers["x-should-retry"] == "false"


async def test_batches_are_listed_newest_first_and_paged(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        ids = [(await submitted(client, encoded(line(1)))).id for _ in range(5)]
        assert [one.id async for one in client.batches.list(limit=2)] == ids[::-1]
        page = await client.batches.list(limit=2, after=ids[3])
        assert [one.id for one in page.data] == [ids[2], ids[1]]
        for limit in ("0", "101", "x"):
            with pytest.raises(openai.BadRequestError, match="limit"):
                await client.batches.list(extra_query={"limit": limit})


async def test_another_team_sees_nothing(tmp_path: Path, fast: EngineProcess) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        mine = await submitted(client, encoded(line(1)))
        other = inferd.openai(api_key=await inferd.new_key("ads"))
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError, match=f"No batch found with id '{mine.id}'"):
                await call(mine.id)
            with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_x'"):
                await call("batch_x")
        with pytest.raises(openai.NotFoundError):
            await other.batches.list(after=mine.id)
        assert (await other.batches.list()).data == []
        asked: dict[str, Any] = {"endpoint": CHAT, "completion_window": "1h"}
        stolen = await other.batches.create(input_file_id=mine.input_file_id, **asked)
        batch = await ended(other, stolen.id)
        assert batch.status == "failed"
        assert batch.errors.data[0].param == "file_id"
        await other.close()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"input_file_id": None}, "missing_required_parameter", "input_file_id"),
    ({"endpoint": None}, "missing_required_parameter", "endpoint"),
    ({"completion_window": None}, "missing_required_parameter", "completion_window"),
    ({"endpoint": "/v1/moderations"}, "invalid_value", "endpoint"),
    ({"completion_window": "59m"}, "invalid_value", "completion_window"),
    ({"completion_window": "8d"}, "invalid_value", "completion_window"),
    ({"completion_window": "soon"}, "invalid_value", "completion_window"),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
        "integer_below_min_value",
        "output_expires_after.seconds",
    ),
    (
        {"output_expires_after": {"seconds": 3_600}},
        "missing_required_parameter",
        "output_expires_after.anchor",
    ),
    ({"window": "24h"}, "unknown_parameter", "window"),
]


async def test_wrong_parameters_are_told_at_once(tmp_path: Path, fast: EngineProcess) -> None:
    right = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
    async with serving(tmp_path, fast) as inferd:
        for changes, code, _param in WRONG:
            url = f"{inferd.base_url}/v1/batches"
            body = {**right, **changes}
            async with inferd.http.post(url, json=body, headers=inferd.headers) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (400, code), changes
                if code != "unknown_parameter":
                    assert error["param"] == _param, changes


async def test_an_idempotency_key_makes_one_batch(tmp_path: Path, fast: EngineProcess) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        headers = {"idempotency-key": "tonight"}
        first = await submitted(client, encoded(line(1)), extra_headers=headers)
        body: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h"}
        again = await client.batches.create(
            input_file_id=first.input_file_id, extra_headers=headers, **body
        )
        assert again.id == first.id
        with pytest.raises(openai.ConflictError, match="Idempotency-Key"):
            await client.batches.create(
                input_file_id=first.input_file_id,
                extra_headers=headers,
                **body | {"completion_window": "2h"},
            )


async def test_answers_are_as_the_document_says(tmp_path: Path, fast: EngineProcess) -> None:
    schema = document()["components"]["schemas"]["Batch"]
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        created = await submitted(client, encoded(line(1)))
        url = f"{inferd.base_url}/v1/batches/{created.id}"
        async with inferd.http.get(url, headers=inferd.headers) as answer:
            assert set(await answer.json()) == set(schema["required"])


async def test_other_endpoints_have_batches_too(tmp_path: Path, fast: EngineProcess) -> None:
    bodies = {
        "/v1/completions": {"model": MODEL, "prompt": "[tokens 3]", "max_tokens": 20},
        "/v1/responses": {"model": MODEL, "input": "[tokens 3]"},
    }
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        for endpoint, body in bodies.items():
            one = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
            created = await submitted(client, encoded(one), endpoint=endpoint)
            batch = await ended(client, created.id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 1), batch
            output = orjson.loads((await client.files.content(batch.output_file_id)).text)
            assert output["response"]["body"]["usage"]
