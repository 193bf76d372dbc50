"""The engine's own environment: how to start programs in it, what is in it, what is wrong.

A virtual environment apart from the gateway's, which never imports the engine. On a CPU the
programs get inferd's shims on PYTHONPATH; on GPUs they run as they came.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferd.provision import machine, packages, record
from inferd.provision.recipes import EXTRAS, RECIPES, Device, Recipe, extra_pins
from inferd.provision.record import InstallRecord, Step

SHIMS: Final = Path(__file__).parent / "shims"
INSTALL: Final = "run `inferd engine install`"
_KEY_PACKAGES: Final = ("sglang", "torch", "transformers")

# Of the gateway's own python, or of another environment that it was started in. Without bytecode
# kept, every start of an engine compiles 6,500 modules again: 15 s.
_UNWANTED: Final = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV"}
)


@dataclass(frozen=True, slots=True)
class Installed:
    """What an environment holds, by its own records."""

    device: Device
    python: str
    versions: dict[str, str]
    """Every package of the recipe that is there, by its normal name."""

    @property
    def key_versions(self) -> dict[str, str]:
        return {name: self.versions.get(name, "missing") for name in _KEY_PACKAGES}


class EngineEnvironment:
    """The environment in `directory`, whether or not it is there yet."""

    def __init__(self, directory: Path, recipes: Mapping[Device, Recipe] | None = None) -> None:
        self.directory = directory.absolute()
        self._recipes = RECIPES if recipes is None else recipes

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where packages lie; a folder that does not exist when there is no environment."""
        found = sorted(self.directory.glob("lib/python3.*/site-packages"))
        return found[-1] if found else self.directory / "lib" / "python" / "site-packages"

    @property
    def pip_version(self) -> str:
        """Of the environment's pip; 0 when there is none."""
        found = packages.distributions(self.site_packages).get("pip", [])
        return found[0].version if found else "0"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def recipe(self, device: Device, extras: frozenset[str] = frozenset()) -> Recipe:
        """What belongs into it, with the extras that are there already and those named."""
        return self._recipes[device].including(self.extras(device) | extras)

    def extras(self, device: Device) -> frozenset[str]:
        """Which extras are there, whole or not."""
        found = packages.distributions(self.site_packages)
        return frozenset(
            name for name in EXTRAS if any(pin.name in found for pin in extra_pins(device, name))
        )

    def record(self) -> InstallRecord | None:
        return record.load(self.directory)

    def command(self) -> list[str]:
        """The engine's program and its first arguments; its flags follow."""
        return [str(self.python), "-m", "sglang.launch_server"]

    def env(
        self,
        extra: Mapping[str, str] | None = None,
        *,
        device: Device | None = None,
        inherited: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """The whole environment of an engine process, with `extra` laid over it.

        `device` is the installed one if unset; `inherited` is this process's environment. On a
        CPU one thread computes unless `extra` says otherwise: more than cores - 1 of them wait
        for each other and make the engine ten times slower.
        """
        if device is None:
            known = self.record()
            device = known.device if known else Device.CPU
        base = os.environ if inherited is None else inherited
        made = {name: value for name, value in base.items() if name not in _UNWANTED}
        path = made.get("PATH", os.defpath)
        made |= {
            "PATH": f"{self.python.parent}{os.pathsep}{path}",  # kernels are built with ninja
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            # Weights come from folders; without these a start may wait for a network.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }
        if device is Device.CPU:
            made |= {
                "PYTHONPATH": str(SHIMS),
                "SGLANG_USE_CPU_ENGINE": "1",
                "OMP_NUM_THREADS": "1",
            }
        return made | dict(extra or {})

    def installed(self) -> Installed | None:
        """What is installed; None when no install got as far as its packages."""
        known = self.record()
        if known is None or Step.PACKAGES not in known.steps:
            return None
        pins = self.recipe(known.device).pins
        versions = {
            name: found[0].version
            for name, found in packages.distributions(self.site_packages).items()
            if any(pin.name == name for pin in pins)
        }
        return Installed(known.device, known.python, versions)

    def problems(self, *, deep: bool = False) -> list[str]:
        """Why engines cannot be started from here, one line each with the next step.

        Empty when they can. Takes milliseconds; with `deep` every file is looked for (0.3 s).
        """
        known = self.record()
        if known is None or not self.directory.is_dir():
            return [f"no engine is installed in {self.directory}: {INSTALL}"]
        if fault := self.interpreter_fault(run=deep):
            return [f"the engine's environment is broken ({fault}): {INSTALL}, which repairs it"]
        recipe = self.recipe(known.device)
        found = packages.inspect(self.site_packages, recipe.pins, every_file=deep)
        lines = list(_package_problems(found, recipe))
        if not lines and Step.PACKAGES not in known.steps:
            lines.append(f"an install of the engine did not finish: {INSTALL}, which goes on")
        return lines

    def interpreter_fault(self, *, run: bool = True) -> str | None:
        """What is wrong with the environment's python; `run` also starts it (20 ms)."""
        python = self.python
        if not python.exists():
            gone = python.is_symlink()
            return f"{python} points to a Python that is gone" if gone else f"{python} is missing"
        if not os.access(python, os.X_OK):
            return f"{python} is not executable"
        if not (self.directory / "pyvenv.cfg").is_file():
            return "pyvenv.cfg is missing"
        if not run:
            return None
        version = machine.python_version(python)
        if version is None:
            return f"{python} does not run"
        folder = f"python{'.'.join(version.split('.')[:2])}"
        if self.site_packages.parent.name != folder:
            return f"{python} is Python {version}, and its packages are of another version"
        return None


def _package_problems(found: packages.Inspection, recipe: Recipe) -> Iterator[str]:
    shown = 3
    if not found.faults:
        return
    if len(found.faults) == len(recipe.pins):
        yield f"none of the engine's {len(recipe.pins)} packages is installed: {INSTALL}"
        return
    faults = "; ".join(map(str, found.faults[:shown]))
    more = len(found.faults) - shown
    rest = f" and {more} more" if more > 0 else ""
    yield f"packages of the engine are not as pinned ({faults}{rest}): {INSTALL}, which repairs it"
