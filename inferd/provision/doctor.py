"""`inferd engine doctor`: what is installed, what it can do here, what is missing.

Looks, and changes nothing but its own log. Whether engines can serve from here is one question:
is there a finding of level `problem`?
"""

from __future__ import annotations

import ctypes.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from inferd.provision import machine, packages
from inferd.provision.demo_model import DEMO, DemoModel
from inferd.provision.environment import INSTALL, EngineEnvironment, Installed
from inferd.provision.features import Feature, features
from inferd.provision.install import PROBE
from inferd.provision.machine import Machine
from inferd.provision.programs import Program, ProgramFailed, ending, run_together
from inferd.provision.recipes import SPLIT, Device
from inferd.provision.record import Step

DRIVER_MIN: Final = 580
"""The first NVIDIA driver branch for CUDA 13, which the pinned torch is built with."""
MEMORY_BYTES_MIN: Final = 4_000_000_000
"""The demo model's engine keeps 2.5 GB and needs more while it loads."""
FREE_BYTES_MIN: Final = 1_000_000_000
_SHOWN: Final = 5


class Level(StrEnum):
    """`problem` keeps engines from serving; `note` is something to know."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    subject: str
    level: Level
    text: str
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything found. `device` and `versions` are empty when nothing is installed."""

    directory: Path
    device: Device | None
    versions: dict[str, str]
    findings: tuple[Finding, ...]
    features: tuple[Feature, ...]

    @property
    def can_serve(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "can_serve": self.can_serve,
            "directory": str(self.directory),
            "device": self.device,
            "versions": self.versions,
            "findings": [
                {
                    "subject": finding.subject,
                    "level": finding.level,
                    "text": finding.text,
                    "next_step": finding.next_step,
                }
                for finding in self.findings
            ],
            "features": [
                {"name": feature.name, "works": feature.works, "remark": feature.remark}
                for feature in self.features
            ],
        }


def examine(
    environment: EngineEnvironment,
    models: Path,
    *,
    deep: bool = False,
    here: Machine | None = None,
    model: DemoModel = DEMO,
) -> Diagnosis:
    """Looks at everything in about a second. `deep` reads every file and loads the engine (30 s).

    `here` is this machine if unset.
    """
    here = here or machine.look()
    installed = environment.installed()
    findings = [_machine(here), *_installation(environment, installed)]
    sound = all(finding.level is not Level.PROBLEM for finding in findings)
    if installed is not None:
        findings += _device(installed.device, here)
        findings += _extras(environment.extras(installed.device))
    if installed is not None and sound:
        findings += _proof(environment, installed.device, here, deep=deep)
    findings.append(_model(model, models))
    findings += _space(environment.directory)
    device = installed.device if installed else None
    return Diagnosis(
        directory=environment.directory,
        device=device,
        versions=_shown_versions(installed),
        findings=tuple(findings),
        features=features(device or here.device, here),
    )


def _machine(here: Machine) -> Finding:
    memory = f"{here.memory_bytes / 1e9:.0f} GB memory"
    cores = f"{here.cores} core{'s' if here.cores != 1 else ''}"
    if here.gpus:
        kinds = {gpu: here.gpus.count(gpu) for gpu in here.gpus}
        gpus = ", ".join(f"{count} x {gpu}" for gpu, count in kinds.items())
        text = f"{gpus}, driver {here.driver or 'unknown'}, {cores}, {memory}"
    else:
        amx = "with AMX" if here.amx else "without AMX"
        text = f"no NVIDIA GPU, {cores} of {here.cpu} {amx}, {memory}"
    if 0 < here.memory_bytes < MEMORY_BYTES_MIN:
        return Finding(
            "machine", Level.NOTE, text, "an engine needs 4 GB of memory even for a tiny model"
        )
    return Finding("machine", Level.OK, text)


def _installation(environment: EngineEnvironment, installed: Installed | None) -> Iterator[Finding]:
    for problem in environment.problems(deep=True):
        text, _, step = problem.rpartition(": ")
        yield Finding("engine", Level.PROBLEM, text, step)
    if installed is not None:
        names = {"sglang": "SGLang", "torch": "torch", "transformers": "transformers"}
        versions = ", ".join(f"{names[n]} {v}" for n, v in installed.key_versions.items())
        yield Finding(
            "engine",
            Level.OK,
            f"{versions}, Python {installed.python}, for {installed.device} in "
            f"{environment.directory}",
        )


def _device(device: Device, here: Machine) -> Iterator[Finding]:
    if device is Device.CPU:
        if here.gpus:
            yield Finding(
                "device",
                Level.NOTE,
                "the engine is the CPU one, and a GPU is here",
                "run `inferd engine install --cuda` to use it",
            )
        if shutil.which("lscpu") is None:
            yield Finding(
                "lscpu",
                Level.PROBLEM,
                "the engine asks lscpu for the CPU's layout when it starts, and it is not on PATH",
                "install it (on Debian: `apt-get install util-linux`)",
            )
        return
    if not here.gpus:
        yield Finding(
            "device",
            Level.PROBLEM,
            "the engine is for NVIDIA GPUs, and none is here",
            "start it where one is (a container must be given its devices), or run "
            "`inferd engine install --cpu`",
        )
    elif here.driver is None or int(here.driver.split(".")[0]) < DRIVER_MIN:
        yield Finding(
            "driver",
            Level.PROBLEM,
            f"the engine needs NVIDIA driver {DRIVER_MIN} or newer, and here is "
            f"{here.driver or 'none that says its version'}",
            "update the driver",
        )
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        yield Finding(
            "compiler",
            Level.PROBLEM,
            "the engine compiles GPU kernels when it first runs, and there is no C compiler",
            "install one (on Debian: `apt-get install gcc`)",
        )


def _extras(found: frozenset[str]) -> Iterator[Finding]:
    """What an extra needs of the system, which no package of Python brings."""
    if SPLIT in found and ctypes.util.find_library("ibverbs") is None:
        yield Finding(
            "split",
            Level.PROBLEM,
            "workers that compute prompts need libibverbs, even where KV caches go over TCP",
            "install it (on Debian: `apt-get install libibverbs1`)",
        )
    elif SPLIT in found:
        yield Finding("split", Level.OK, "prefill and decode can be on separate workers")


def _proof(
    environment: EngineEnvironment, device: Device, here: Machine, *, deep: bool
) -> Iterator[Finding]:
    """Whether the engine loads: by what the install saw, or (`deep`) by doing it now."""
    known = environment.record()
    assert known is not None, "an installed environment has a record"
    if not deep:
        if (when := known.steps.get(Step.PROOF)) is not None:
            yield Finding("loads", Level.OK, f"seen to load on {when}")
        else:
            yield Finding("loads", Level.NOTE, "not tried yet", "run `inferd engine doctor --deep`")
        return
    pins = environment.recipe(device).pins
    altered = list(packages.altered_files(environment.site_packages, pins))
    if altered:
        more = len(altered) - _SHOWN
        rest = f" and {more} more" if more > 0 else ""
        yield Finding(
            "files",
            Level.PROBLEM,
            "; ".join(altered[:_SHOWN]) + rest,
            f"remove {environment.site_packages} and {INSTALL}",
        )
    else:
        yield Finding("files", Level.OK, "every file is as its package brought it")
    yield _load(environment, device, here)


def _load(environment: EngineEnvironment, device: Device, here: Machine) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        program = Program(
            "doctor",
            [str(environment.python), str(PROBE), str(answer)],
            environment.env(device=device),
            environment.logs / "doctor.log",
        )
        try:
            run_together([program], lambda *_: None, lambda _: None)
        except ProgramFailed as failure:
            last = next((line for line in reversed(failure.tail) if line.strip()), "no output")
            return Finding(
                "loads",
                Level.PROBLEM,
                f"the engine does not load ({ending(failure.code)}): {last.strip()}",
                f"see {program.log}",
            )
        seen = json.loads(answer.read_text(encoding="utf-8"))
    if device is Device.CUDA and len(seen["gpus"]) < len(here.gpus):
        return Finding(
            "loads",
            Level.PROBLEM,
            f"the engine loads, and torch sees {len(seen['gpus'])} of {len(here.gpus)} GPUs",
            "look at CUDA_VISIBLE_DEVICES and at the driver",
        )
    build = f"CUDA {seen['cuda_build']}" if seen["cuda_build"] else "CPU"
    return Finding(
        "loads", Level.OK, f"SGLang {seen['sglang']} on torch {seen['torch']} ({build} build)"
    )


def _model(model: DemoModel, models: Path) -> Finding:
    folder = model.folder(models)
    if not folder.exists():
        text = f"{model.name} is not there; your own models do not need it"
        return Finding("demo model", Level.NOTE, text, f"{INSTALL} to make it")
    if wrong := model.problems(models):
        return Finding(
            "demo model",
            Level.PROBLEM,
            f"{folder}: {'; '.join(wrong)}",
            f"{INSTALL}, which repairs it",
        )
    return Finding("demo model", Level.OK, f"{folder}, every file as recorded")


def _space(directory: Path) -> Iterator[Finding]:
    free = machine.free_bytes(directory)
    if free < FREE_BYTES_MIN:
        text = f"{free / 1e9:.1f} GB are free at {directory}"
        yield Finding("disk", Level.NOTE, text, "free some: engines write logs and caches")


def _shown_versions(installed: Installed | None) -> dict[str, str]:
    """Of the packages that decide what the engine can do."""
    if installed is None:
        return {}
    deciding = (
        "sglang", "torch", "transformers", "tokenizers", "triton", "xgrammar",
        "sglang-kernel", "flashinfer-python", "torchvision",
    )  # fmt: skip
    versions = {name: installed.versions[name] for name in deciding if name in installed.versions}
    return {"python": installed.python, **versions}
