"""What an install has done, kept in the environment's folder so that the next one goes on.

A note, never a proof: packages and interpreter are looked at each time. Written whole or not at
all; one that cannot be read counts as none.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from inferd.provision.recipes import Device

FILE: Final = "install.json"
_FORMAT: Final = 1


class Step(StrEnum):
    """The parts of an install, in order."""

    ENVIRONMENT = "environment"
    PACKAGES = "packages"
    MODEL = "model"
    PROOF = "proof"


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """`steps` maps a finished step to when that was, ISO 8601 in UTC."""

    device: Device
    recipe: str
    python: str = ""
    """Of the interpreter, like 3.12.1; empty before there is one."""
    steps: dict[Step, str] = field(default_factory=dict)

    def with_step(self, step: Step, when: str) -> InstallRecord:
        return replace(self, steps={**self.steps, step: when})

    def without(self, *steps: Step) -> InstallRecord:
        return replace(self, steps={s: t for s, t in self.steps.items() if s not in steps})


def load(directory: Path) -> InstallRecord | None:
    """The record of the environment in `directory`; None when there is none of use."""
    try:
        document: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            return None
        return InstallRecord(
            device=Device(document["device"]),
            recipe=str(document["recipe"]),
            python=str(document["python"]),
            steps={Step(step): str(when) for step, when in document["steps"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(directory: Path, record: InstallRecord) -> None:
    document = {
        "format": _FORMAT,
        "device": record.device,
        "recipe": record.recipe,
        "python": record.python,
        "steps": record.steps,
    }
    unfinished = directory / f".{FILE}"
    with unfinished.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(directory / FILE)
