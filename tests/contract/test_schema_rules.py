"""The rules of `enforceable`, held against the engine's own grammar compiler."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inferd.api.json_schema import SchemaChecker
from inferd.errors import InvalidField
from inferd.provision.environment import EngineEnvironment
from tests.fakes.engines import ENGINE_ENVIRONMENT

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SUITE = Path(__file__).parents[1] / "data" / "json_schema_suite"
PROGRAM = Path(__file__).with_name("grammar_verdicts.py")


def honoured_cases() -> list[dict[str, Any]]:
    found = []
    for file in sorted(SUITE.glob("*.json")):
        for case in json.loads(file.read_text(encoding="utf-8")):
            checker = SchemaChecker("response_format", "invalid_json_schema")
            try:
                checker.check(case["schema"])
                checker.check_enforceable(case["schema"])
            except (InvalidField, AttributeError, TypeError):
                continue
            found.append(case)
    return found


def test_no_honoured_schema_lets_an_invalid_value_through() -> None:
    cases = [case for case in honoured_cases() if isinstance(case["schema"], dict)]
    asked = [[case["schema"], [test["data"] for test in case["tests"]]] for case in cases]
    environment = EngineEnvironment(ENGINE_ENVIRONMENT)
    done = subprocess.run(
        [str(environment.python), str(PROGRAM)],
        input=json.dumps(asked),
        env=environment.env({}),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    verdicts = json.loads(done.stdout.splitlines()[-1])
    passed = [
        (case["description"], test["description"])
        for case, verdict in zip(cases, verdicts, strict=True)
        for test, taken in zip(case["tests"], verdict or (), strict=verdict is not None)
        if taken and not test["valid"]
    ]
    assert passed == []
    assert sum(verdict is not None for verdict in verdicts) > 90
