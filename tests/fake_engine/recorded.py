"""What a real server answered, for the parts of an answer that the fake does not compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson

CAPTURES = Path(__file__).resolve().parents[1] / "data" / "engine_captures"
RECORDED_MODEL = "smollm2-135m"


@dataclass(slots=True)
class Family:
    """One metric: its two comment lines and its recorded samples (labels in braces)."""

    name: str
    comments: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    @property
    def gauge(self) -> bool:
        return self.comments[-1].endswith(" gauge")


def body(name: str) -> bytes:
    """The body of a recorded answer."""
    return (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")[2]


@cache
def _json(name: str) -> bytes:
    return body(name)


def json_object(name: str) -> dict[str, Any]:
    """A fresh copy of a recorded JSON object, in its key order."""
    value = orjson.loads(_json(name))
    assert isinstance(value, dict)
    return value


@cache
def metric_families() -> tuple[Family, ...]:
    """Every metric of the recorded /metrics, in its order."""
    families: list[Family] = []
    for line in body("metrics").decode().splitlines():
        if line.startswith("# HELP "):
            families.append(Family(line.split(" ")[2], [line]))
        elif line.startswith("# TYPE "):
            families[-1].comments.append(line)
        elif line:
            name, brace, rest = line.partition("{")
            if brace and name == families[-1].name:
                families[-1].labels.append("{" + rest.rpartition("}")[0] + "}")
    return tuple(families)
