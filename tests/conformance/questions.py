"""MGSM questions in German, Chinese, Japanese and Thai: a stream's text is that of a whole answer.

Where an engine is deterministic: one request at a time, temperature 0, its cache flushed between.
Run as a program it tells a line for every question.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import openai

DATA = Path(__file__).parents[1] / "data" / "mgsm"
LANGUAGES = ("de", "zh", "ja", "th")
TOKENS_MAX = 32


def questions(language: str, count: int) -> list[str]:
    """The first `count` of the 50 that are kept here."""
    lines = (DATA / f"mgsm_{language}.tsv").read_text(encoding="utf-8").splitlines()
    return [line.partition("\t")[0] for line in lines[:count]]


async def difference(
    client: openai.AsyncOpenAI, model: str, question: str, flush: Callable[[], Awaitable[None]]
) -> str | None:
    """How the two answers to a question differ; None if they do not."""
    await flush()
    whole = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=TOKENS_MAX,
        temperature=0,
    )
    await flush()
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=TOKENS_MAX,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts, reason, usage = [], None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    (only,) = whole.choices
    text = "".join(parts)
    if text != only.message.content or reason != only.finish_reason:
        return f"{only.message.content!r} ({only.finish_reason}), streamed {text!r} ({reason})"
    if usage != whole.usage:
        return f"usage {whole.usage}, streamed {usage}"
    return None if text else "no text"


async def main() -> int:
    count = int(os.environ.get("QUESTIONS", "6"))
    failed = 0
    async with (
        aiohttp.ClientSession() as http,
        openai.AsyncOpenAI(
            base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"]
        ) as client,
    ):

        async def flush() -> None:
            async with http.post(f"{os.environ['ENGINE_URL']}/flush_cache") as answer:
                assert answer.status == 200, await answer.text()

        asked = {language: questions(language, count) for language in LANGUAGES}
        for number in range(count):
            for language in LANGUAGES:
                question = asked[language][number]
                found = await difference(client, os.environ["MODEL"], question, flush)
                failed += found is not None
                told = "ok" if found is None else "not ok"
                print(f"{told} {language} {number + 1}: {found or 'the same'}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
