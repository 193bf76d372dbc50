"""A tokenizer is used only while it counts as the engine does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferd.quota.exact_counts import CHECKS, ExactCounts, Messages
from inferd.quota.model_tokenizer import ModelTokenizer
from tests.fakes.tokenizer_folder import make
from tests.unit.routing.clients import request as asked_for

pytestmark = pytest.mark.real_time


async def test_it_is_used_where_it_agrees_and_no_longer_where_a_bill_differs(
    tmp_path: Path,
) -> None:
    tokenizer = ModelTokenizer.of_folder(make(tmp_path))
    asked: list[Messages] = []

    async def engine(messages: Messages) -> int:
        asked.append(messages)
        return tokenizer.count_chat(messages) or 0

    counts = ExactCounts()
    assert not counts.knows("chat@1")
    assert await counts.check("chat@1", tmp_path, engine) is None
    assert tuple(asked) == CHECKS
    assert counts.knows("chat@1")
    body = {"messages": [{"role": "user", "content": "hello"}]}
    one = replace(asked_for(), body=body, pool="chat@1")
    counted = await counts.count(one)
    assert counted == tokenizer.count_chat(body["messages"])
    counts.billed(replace(one, prompt_tokens_estimated=5), 5)
    assert counts.knows("chat@1")
    counts.billed(replace(one, prompt_tokens_estimated=5), 6)
    assert not counts.knows("chat@1")
    assert await counts.count(one) is None


async def test_it_is_not_used_where_it_differs_or_is_not_there(tmp_path: Path) -> None:
    async def engine(messages: Messages) -> int:
        return 3

    counts = ExactCounts()
    why = await counts.check("chat@1", make(tmp_path), engine)
    assert why is not None
    assert "of which the engine makes 3" in why
    why = await counts.check("chat@1", tmp_path / "none", engine)
    assert why is not None
    assert "cannot be read" in why
    assert not counts.knows("chat@1")
