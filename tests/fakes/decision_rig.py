"""The decision on real parts: warm workers, weighted shares, a batch flood. Figures, no verdicts.

Used by the tests and by `scripts/bench decision`: the same scenarios, shorter or longer.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

WORDS = [
    "river",
    "stone",
    "lamp",
    "green",
    "paper",
    "seven",
    "walk",
    "north",
    "quiet",
    "glass",
    "copper",
    "early",
    "window",
]


@dataclass(slots=True)
class Turn:
    """One answer to one turn of a conversation."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Chat:
    """The public API of one inferd, asked by one team."""

    http: aiohttp.ClientSession
    url: str
    key: str
    model: str
    told: Counter[str] = field(default_factory=Counter)

    async def whole(self, messages: list[dict[str, str]], tokens: int) -> tuple[str, Turn]:
        async with self._post(messages, tokens, stream=False) as answer:
            body = await answer.json()
            assert answer.status == 200, body
        usage = body["usage"]
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        self.told["tokens"] += usage["prompt_tokens"] + usage["completion_tokens"]
        turn = Turn(answer.headers["x-request-id"], usage["prompt_tokens"], cached)
        return body["choices"][0]["message"]["content"] or "", turn

    async def first_token_s(self, messages: list[dict[str, str]], tokens: int) -> float:
        began = time.perf_counter()
        async with self._post(messages, tokens, stream=True) as answer:
            assert answer.status == 200, await answer.text()
            await answer.content.readline()
            took_s = time.perf_counter() - began
            async for _ in answer.content:
                pass
        return took_s

    def _post(
        self, messages: list[dict[str, str]], tokens: int, *, stream: bool, **more: Any
    ) -> Any:
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": tokens,
            "stream": stream,
            "ignore_eos": True,
            **more,
        }
        headers = {"Authorization": f"Bearer {self.key}", "content-type": "application/json"}
        url = f"{self.url}/chat/completions"
        return self.http.post(url, data=orjson.dumps(body), headers=headers)

    async def batch(self, messages: list[dict[str, str]], tokens: int) -> None:
        async with self._post(messages, tokens, stream=False, priority="batch") as answer:
            await answer.read()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def prose(words: int, seed: int) -> str:
    return " ".join(WORDS[(number * 7 + seed) % len(WORDS)] for number in range(words))


async def conversations(chat: Chat, questions: list[list[str]]) -> list[tuple[Turn, Turn]]:
    """Two turns each, all behind one system prompt of about a thousand tokens.

    Two begin at once, so that each worker gets one; their second turns come one after the other,
    for a request whose own worker is busy rightly goes to an idle one.
    """
    system = {"role": "system", "content": prose(1_000, 0)}
    found = []
    for pair in zip(questions[::2], questions[1::2], strict=True):
        begun = [[system, user(turns[0])] for turns in pair]
        firsts = await asyncio.gather(*(chat.whole(messages, 16) for messages in begun))
        for messages, turns, (text, first) in zip(begun, pair, firsts, strict=True):
            messages += [{"role": "assistant", "content": text}, user(turns[1])]
            _, second = await chat.whole(messages, 16)
            found.append((first, second))
    return found


async def shares(teams: dict[str, Chat], seconds: float, clients: int) -> dict[str, int]:
    """Tokens that each team got while all of them asked for more than there is."""
    number = itertools.count()

    async def ask(chat: Chat) -> None:
        while True:
            await chat.whole([user(f"{next(number)} {prose(20, 1)}")], 24)

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(chat)) for chat in teams.values() for _ in range(clients)]
        await asyncio.sleep(seconds / 4)  # until everybody waits
        before = {name: chat.told["tokens"] for name, chat in teams.items()}
        await asyncio.sleep(seconds)
        after = {name: chat.told["tokens"] for name, chat in teams.items()}
        for task in asking:
            task.cancel()
    return {name: after[name] - before[name] for name in teams}


@dataclass(slots=True)
class Flood:
    """First tokens of interactive requests, seconds: alone, and while batch work is running."""

    alone: list[float] = field(default_factory=list)
    flooded: list[float] = field(default_factory=list)

    def ratio(self, share: float) -> float:
        return quantile(self.flooded, share) / quantile(self.alone, share)


async def flood(
    chat: Chat, requests: int, *, batch: int, batch_tokens: int, settle_s: float
) -> Flood:
    """Every other one of `requests` finds `batch` batch requests running."""
    found = Flood()
    number = itertools.count()
    await chat.first_token_s([user("warm " + prose(30, 3))], 2)
    for at in range(requests):
        flooded = at % 2 == 1
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    chat.batch([user(f"{next(number)} {prose(40, 2)}")], batch_tokens)
                )
                for _ in range(batch if flooded else 0)
            ]
            if flooded:
                await asyncio.sleep(settle_s)
            took_s = await chat.first_token_s([user(f"{next(number)} {prose(30, 3)}")], 4)
            (found.flooded if flooded else found.alone).append(took_s)
            for task in running:
                task.cancel()
        await asyncio.sleep(settle_s)
    return found


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median_ms(values: list[float]) -> float:
    return statistics.median(values) * 1e3
