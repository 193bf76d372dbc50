"""The first prompts. Goal: whatever an engine answers, its worker has a result or a reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from inferd.errors import InferdError
from inferd.workers.client import WorkerClient
from inferd.workers.warm_up import warm_up

ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris."}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 16, "prompt_tokens_details": None},
}


class Answering(WorkerClient):
    """Gives these answers, one after another."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        super().__init__("w", "http://nowhere", None)
        self._answers = list(answers)

    async def complete(
        self, path: str, payload: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        del path, payload, timeout_s
        return self._answers.pop(0)


def answer(**changes: object) -> dict[str, Any]:
    return {**copy.deepcopy(ANSWER), **changes}


async def test_three_answers_are_one_bill() -> None:
    found = await warm_up(Answering(answer(), answer(), answer()), "chat", 1.0)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (27, 48)


async def test_only_the_prompt_that_was_timed_says_what_a_prompt_token_costs() -> None:
    details = {"cached_tokens": 3}
    timed = answer(usage={**answer()["usage"], "prompt_tokens_details": details})
    found = await warm_up(Answering(answer(), timed, answer()), "chat", 1.0)
    assert found.new_tokens == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"choices": None},
        {"choices": []},
        {"choices": {}},
        {"choices": "text"},
        {"choices": 1},
        {"choices": [None]},
        {"choices": ["text"]},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": "Paris."}]},
        {"choices": [{"message": []}]},
        {"choices": [{"message": {"content": None}}]},
        {"choices": [{"message": {"content": "Paris."}, "index": "0"}]},
        {"usage": None},
        {"usage": {}},
        {"usage": []},
        {"usage": "many"},
        {"usage": [1]},
    ],
    ids=str,
)
async def test_an_answer_of_another_form_is_a_reason_to_fail(changes: dict[str, Any]) -> None:
    with pytest.raises(InferdError):
        await warm_up(Answering(answer(**changes), answer(), answer()), "chat", 1.0)
    if "usage" in changes:
        with pytest.raises(InferdError):
            await warm_up(Answering(answer(), answer(**changes), answer()), "chat", 1.0)
