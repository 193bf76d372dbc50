"""300 real JSON schemas: each is honoured or refused by name, never answered otherwise.

Two hundred are parameters of functions from the Berkeley function-calling data, a hundred are cases
of the JSON Schema test suite. Run as a program it asks the gateway for a value of each and tells a
line for every one, then a table.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

DATA = Path(__file__).parents[1] / "data"
FROM_SUITE = 100
SEED = 300
AT_ONCE = 8
TOKENS_MAX = 96
"""Few schemas bound their strings, and a small model may go on for ever: it ends with `length`."""
REFUSAL = re.compile(
    r"'(?P<keyword>[^']+)' at '(?P<pointer>#[^']*)' of the schema cannot be enforced"
)
OUTSIDE = "'$ref' is followed inside the schema only"
TABLE = "The table:"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    source: str
    """`bfcl` or `suite`."""
    schema: dict[str, Any] = field(hash=False)


def cases() -> list[Case]:
    """Always the same 300."""
    lines = (DATA / "bfcl_schemas.jsonl").read_text(encoding="utf-8").splitlines()
    found = [Case(one["id"], "bfcl", one["schema"]) for one in map(json.loads, lines)]
    suite = [
        Case(f"{file.stem}: {case['description']}", "suite", case["schema"])
        for file in sorted((DATA / "json_schema_suite").glob("*.json"))
        for case in json.loads(file.read_text(encoding="utf-8"))
        if isinstance(case["schema"], dict)
    ]
    return [*found, *random.Random(SEED).sample(suite, FROM_SUITE)]


def refusal(message: str) -> str | None:
    """The keyword that a 400 names; None: it names none."""
    if found := REFUSAL.search(message):
        return found["keyword"]
    return "$ref" if OUTSIDE in message else None


def fault(schema: dict[str, Any], text: str) -> str | None:
    """Why an answer breaks its schema; None if it does not."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return f"no JSON: {error}: {text[:200]!r}"
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    broken = [f"{one.message[:200]} in {text[:200]!r}" for one in validator.iter_errors(value)]
    return broken[0] if broken else None


async def outcome(client: openai.AsyncOpenAI, model: str, case: Case) -> tuple[str, str]:
    """`honoured`, `cut`, `refused` or `wrong`, and what there is to say of it."""
    described: Any = {"name": "value", "schema": case.schema, "strict": True}
    shape: Any = {"type": "json_schema", "json_schema": described}
    try:
        answer = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "An example in JSON, short:"}],
            response_format=shape,
            max_tokens=TOKENS_MAX,
            temperature=0,
        )
    except openai.BadRequestError as error:
        keyword = refusal(error.message) if error.param == "response_format" else None
        return ("refused", keyword) if keyword else ("wrong", str(error))
    except openai.APIError as error:
        return "wrong", f"{type(error).__name__}: {error}"
    (choice,) = answer.choices
    if choice.finish_reason == "length":
        return "cut", "length"
    broken = fault(case.schema, choice.message.content or "")
    return ("wrong", broken) if broken else ("honoured", choice.finish_reason)


def table(outcomes: dict[Case, tuple[str, str]]) -> str:
    """Outcomes by source, then what was refused for which keyword."""
    lines = [
        "| schemas | honoured | cut by `max_tokens` | refused by name | broken |",
        "| --- | --: | --: | --: | --: |",
    ]
    sources = {"bfcl": "200 parameters of functions (BFCL)", "suite": "100 of the test suite"}
    for source, told in sources.items():
        counted = Counter(kind for case, (kind, _) in outcomes.items() if case.source == source)
        counts = [str(counted[kind]) for kind in ("honoured", "cut", "refused", "wrong")]
        lines.append(f"| {told} | {' | '.join(counts)} |")
    refused = Counter(keyword for kind, keyword in outcomes.values() if kind == "refused")
    named = ", ".join(f"`{keyword}` {count}" for keyword, count in refused.most_common())
    return "\n".join([*lines, "", f"Refused for: {named}.", ""])


async def main() -> int:
    outcomes: dict[Case, tuple[str, str]] = {}
    waiting = iter(cases())
    model = os.environ["MODEL"]

    async def work(client: openai.AsyncOpenAI) -> None:
        for case in waiting:
            kind, told = outcomes[case] = await outcome(client, model, case)
            mark = {"honoured": "ok", "cut": "ok", "refused": "refused"}.get(kind, "not ok")
            print(f"{mark} {case.name}: {told}", flush=True)

    client = openai.AsyncOpenAI(
        base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], timeout=120
    )
    async with client, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work(client))
    print(f"{TABLE}\n{table(outcomes)}")
    return any(kind == "wrong" for kind, _ in outcomes.values())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
