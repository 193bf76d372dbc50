"""Makes and repairs the interpreter of an environment, and its pip.

Packages that are already there stay when they are of the same Python, so that an environment
whose Python was upgraded or removed is whole again in seconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from inferd.provision import machine, packages, pip
from inferd.provision.environment import EngineEnvironment
from inferd.provision.programs import Program
from inferd.provision.recipes import Pin, Recipe
from inferd.provision.record import Step
from inferd.provision.steps import Steps


def make(environment: EngineEnvironment, recipe: Recipe, steps: Steps, temporary: Path) -> None:
    """A running interpreter in `environment`, with the pip that it bundles."""
    base = machine.python_for(recipe)
    version = machine.python_version(base)
    assert version is not None, f"{base} ran a moment ago"
    _clear(environment.directory, version)
    arguments = [str(base), "-I", "-m", "venv", str(environment.directory)]
    _run(environment, "venv", arguments, steps, temporary)


def make_pip(environment: EngineEnvironment, pin: Pin, steps: Steps, temporary: Path) -> None:
    """The pip that a recipe pins, by way of the one that Python bundles."""
    if not _pip_works(environment):
        # Without its record the bundled one counts as missing, and is unpacked again.
        broken = packages.Fault(pin, "does not work")
        packages.clear_way(environment.site_packages, [broken])
        arguments = [str(environment.python), "-I", "-m", "ensurepip"]
        _run(environment, "ensurepip", arguments, steps, temporary)
    upgrade = pip.program(
        "pip",
        environment.python,
        pip.install_arguments([str(pin)], closed=True),
        log=environment.logs / "pip.log",
        temporary=temporary,
    )
    steps.run({Step.ENVIRONMENT: [upgrade]})


def discard(environment: EngineEnvironment) -> None:
    """Removes interpreter and packages; locks and logs stay."""
    for name in ("bin", "include", "lib", "lib64", "pyvenv.cfg", "share"):
        path = environment.directory / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


def _clear(directory: Path, version: str) -> None:
    """Makes way for another interpreter, and drops packages of another Python."""
    for path in (directory / "bin").glob("python*"):
        path.unlink()
    folder = f"python{'.'.join(version.split('.')[:2])}"
    for other in directory.glob("lib/python3.*"):
        if other.name != folder:
            shutil.rmtree(other)


def _pip_works(environment: EngineEnvironment) -> bool:
    """The pip that is there is whole, whatever its version."""
    found = packages.distributions(environment.site_packages).get("pip", [])
    pins = [Pin(distribution.name, distribution.version) for distribution in found]
    inspection = packages.inspect(environment.site_packages, pins, every_file=True)
    return bool(pins) and not inspection.faults


def _run(
    environment: EngineEnvironment,
    name: str,
    arguments: Sequence[str],
    steps: Steps,
    temporary: Path,
) -> None:
    env = pip.environment(os.environ, temporary)
    log = environment.logs / f"{name}.log"
    steps.run({Step.ENVIRONMENT: [Program(name, arguments, env, log)]})
