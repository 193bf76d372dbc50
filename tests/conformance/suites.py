"""The suites: what each needs, how it is run, and how its output is read.

A suite lives in `.inferd/conformance/NAME`, installed from `locks/`, so that a table can be made
again. Commands run there with `BASE_URL`, `API_KEY`, `MODEL` and `EMBEDDING_MODEL` in their
environment.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

PROBES = Path(__file__).with_name("probes")
LOCKS = Path(__file__).with_name("locks")
PYTHON = "bin/python"


@dataclass(frozen=True, slots=True)
class Score:
    """What a suite found. `excused`: failed as expected, for a reason that its plug-in gives."""

    passed: int
    failed: int
    excused: int = 0
    skipped: int = 0


class Packages(Enum):
    """Whose packages a suite needs."""

    PIP = "pip"
    NPM = "npm"
    OURS = "ours"
    """Only what the development environment holds."""
    ENGINE = "engine"
    """The engine's own environment."""


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    about: str
    command: tuple[str, ...]
    read: Callable[[str], Score]
    shows: tuple[str, ...] = ()
    """Packages whose versions stand in the table."""
    packages: Packages = Packages.PIP
    source: str | None = None
    """A package whose own tests come with its source: unpacked into `source`."""
    engines: tuple[str, ...] = ("fake", "real")
    block: str | None = None
    """Where a table of its own goes in the document."""
    quick: bool = False
    """Part of scripts/test."""


def pytest_score(output: str) -> Score:
    """The last line of pytest."""

    def count(word: str) -> int:
        found = re.findall(rf"(\d+) {word}\b", output.splitlines()[-1] if output else "")
        return int(found[-1]) if found else 0

    passed, failed = count("passed") + count("xpassed"), count("failed") + count("errors?")
    failed = failed if passed else max(failed, 1)
    return Score(passed, failed, count("xfailed"), count("skipped"))


def probe_score(output: str) -> Score:
    """Lines of `ok NAME` and `not ok NAME`."""
    passed = len(re.findall(r"^ok ", output, re.MULTILINE))
    failed = len(re.findall(r"^not ok ", output, re.MULTILINE))
    return Score(passed, failed if passed else max(failed, 1))


def refusal_score(output: str) -> Score:
    """Probes of which some were `refused NAME` as they should be."""
    score = probe_score(output)
    return Score(score.passed, score.failed, len(re.findall(r"^refused ", output, re.MULTILINE)))


def unittest_score(output: str) -> Score:
    """Lines of `unittest -v`."""
    outcomes = re.findall(r" \.\.\. (?:.*\n)*?.*?(ok|FAIL|ERROR|skipped)\b", output)
    passed, skipped = outcomes.count("ok"), outcomes.count("skipped")
    failed = len(outcomes) - passed - skipped
    return Score(passed, failed if passed else max(failed, 1), 0, skipped)


def schemathesis_score(output: str) -> Score:
    generated = re.search(r"(\d+) generated", output)
    failures = re.search(r"(\d+) found (\d+) unique", output)
    total = int(generated[1]) if generated else 0
    failed = int(failures[2]) if failures else int(not total)
    return Score(max(total - failed, 0), failed)


_OPENAI_TESTS = tuple(
    f"source/tests/api_resources/{name}"
    for name in (
        "chat/test_completions.py",
        "test_completions.py",
        "test_embeddings.py",
        "test_models.py",
        "test_files.py",
        "test_batches.py",
    )
)
_PYTEST = (PYTHON, "-m", "pytest", "-o", "addopts=", "-q", "--tb=short", "-p", "no:cacheprovider")

SUITES = (
    Suite(
        "openai-python",
        "the SDK's own API tests, sync, async and aiohttp, with strict validation",
        (
            *(*_PYTEST, "-c", "source/pyproject.toml", "-p", "openai_expectations"),
            *_OPENAI_TESTS,
            *("-k", "(create or list) and not (chat and list)"),
        ),
        pytest_score,
        shows=("openai",),
        source="openai",
        quick=True,
    ),
    Suite(
        "openai-node-7",
        "what users of the SDK do and its parser relies on",
        ("node", "probe_openai.mjs"),
        probe_score,
        shows=("openai",),
        packages=Packages.NPM,
        quick=True,
    ),
    Suite(
        "openai-node-6",
        "the same probes",
        ("node", "probe_openai.mjs"),
        probe_score,
        shows=("openai",),
        packages=Packages.NPM,
        quick=True,
    ),
    Suite(
        "vercel-ai",
        "text, tools, objects, embeddings, errors with the AI SDK",
        ("node", "probe_vercel.mjs"),
        probe_score,
        shows=("ai", "@ai-sdk/openai-compatible"),
        packages=Packages.NPM,
        quick=True,
    ),
    Suite(
        "langchain",
        "the standard suites for chat models and embeddings",
        (
            *(*_PYTEST, "-W", "ignore", "--asyncio-mode=auto", "-c", "pytest.ini"),
            *("-p", "langchain_expectations", "probe_langchain.py"),
        ),
        pytest_score,
        shows=("langchain-tests", "langchain-openai", "openai"),
    ),
    Suite(
        "pydantic-ai",
        "text, stream, tool output, native output",
        (PYTHON, "probe_pydantic_ai.py"),
        probe_score,
        shows=("pydantic-ai-slim", "openai"),
    ),
    Suite(
        "instructor",
        "objects through tools and through a JSON schema",
        (PYTHON, "probe_instructor.py"),
        probe_score,
        shows=("instructor", "openai"),
    ),
    Suite(
        "llm",
        "the command line, streamed, whole and with a schema",
        (PYTHON, "probe_llm.py"),
        probe_score,
        shows=("llm", "openai"),
    ),
    Suite(
        "llama-index",
        "OpenAILike: complete, chat, stream",
        (PYTHON, "probe_llama_index.py"),
        probe_score,
        shows=("llama-index-llms-openai-like", "openai"),
    ),
    Suite(
        "sglang-kits",
        "the engine's own tests of its OpenAI endpoints: contract, JSON, stops",
        (PYTHON, "-m", "unittest", "-v", "probe_kits"),
        unittest_score,
        shows=("sglang",),
        packages=Packages.ENGINE,
    ),
    Suite(
        "schemas",
        "300 real JSON schemas, each honoured or refused by name",
        (sys.executable, "-m", "tests.conformance.schemas"),
        refusal_score,
        packages=Packages.OURS,
        engines=("real",),
        block="schemas",
    ),
    Suite(
        "mgsm",
        "questions in four languages: a stream's text is that of a whole answer",
        (sys.executable, "-m", "tests.conformance.questions"),
        probe_score,
        packages=Packages.OURS,
        engines=("real",),
    ),
    Suite(
        "schemathesis",
        "cases from the published document: no 5xx, no undeclared status or body",
        (
            *("bin/schemathesis", "--config-file", "schemathesis.toml", "run", "document.json"),
            *("--url", "{root}", "-H", "Authorization: Bearer {key}", "--seed", "1", "-n", "25"),
            *("--phases", "examples,coverage,fuzzing"),
            *("--exclude-checks", "unsupported_method,positive_data_acceptance"),
        ),
        schemathesis_score,
        shows=("schemathesis",),
        engines=("fake",),  # nobody needs a real answer to ten thousand strange questions
    ),
)
