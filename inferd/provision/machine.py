"""What this machine has: GPUs and their driver, the CPU, memory, disk, Pythons.

Reads /dev and /proc only, so that it needs no vendor library and works before anything is
installed. Linux on x86_64 is what the engine's packages are built for.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferd.errors import ProvisionError
from inferd.provision.recipes import Device, Recipe

_ANSWER_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decide what an engine can do here. Memory in bytes, 0 when unknown."""

    gpus: tuple[str, ...]
    driver: str | None
    cpu: str
    cores: int
    amx: bool
    memory_bytes: int

    @property
    def device(self) -> Device:
        """What an engine should compute on here."""
        return Device.CUDA if self.gpus else Device.CPU


def look(root: Path = Path("/")) -> Machine:
    """This machine, or the one whose /dev and /proc lie under `root`."""
    cpuinfo = _read(root / "proc/cpuinfo")
    meminfo = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    cpu = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return Machine(
        gpus=_gpus(root),
        driver=_driver(root),
        cpu=cpu[1].strip() if cpu else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        amx="amx_tile" in (flags[1].split() if flags else ()),
        memory_bytes=int(meminfo[1]) * 1_024 if meminfo else 0,
    )


def _gpus(root: Path) -> tuple[str, ...]:
    """One name per NVIDIA device that this system (or container) may open."""
    devices = sorted(path for path in (root / "dev").glob("nvidia[0-9]*"))
    models = [
        match[1].strip()
        for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
        if (match := re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE))
    ]
    # A container may see all of /proc and be given some of the devices.
    one_kind = models[0] if len(set(models)) == 1 else "NVIDIA GPU"
    return tuple(models if len(models) == len(devices) else [one_kind] * len(devices))


def _driver(root: Path) -> str | None:
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", _read(root / "proc/driver/nvidia/version"))
    return match[1] if match else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def free_bytes(path: Path) -> int:
    """What can still be written at `path`, which need not exist yet."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def require_platform(system: str | None = None, processor: str | None = None) -> None:
    """ProvisionError unless the engine's packages are built for this platform."""
    system = system or platform.system()
    processor = processor or platform.machine()
    if (system, processor) != ("Linux", "x86_64"):
        raise ProvisionError(
            f"the engine's packages are built for Linux on x86_64, and this is {system} on "
            f"{processor}. Install the engine on such a machine, and attach its workers to a pool "
            "with `attached = [{ url = ... }]` in inferd.toml"
        )


def python_for(recipe: Recipe) -> Path:
    """An interpreter for the engine's environment, the running one if the recipe fits it.

    Else one on PATH. ProvisionError when there is none, or it cannot make environments.
    """
    if sys.version_info[:2] in recipe.pythons:
        found: Path | None = Path(sys.executable)
    else:
        names = (f"python{major}.{minor}" for major, minor in recipe.pythons)
        found = _first_on_path(names)
    if found is None:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        wanted = _listed([f"{major}.{minor}" for major, minor in sorted(recipe.pythons)])
        raise ProvisionError(
            f"the {recipe.device} engine needs Python {wanted}; this is {running}, and none of "
            "those is on PATH. Install one (it may stand beside the other) and run "
            "`inferd engine install` again"
        )
    if not can_make_environments(found):
        raise ProvisionError(
            f"{found} lacks the venv module, which Debian and Ubuntu package separately. Run "
            "`apt-get install python3-venv` and then `inferd engine install` again"
        )
    return found


def can_make_environments(python: Path) -> bool:
    finished = subprocess.run(
        [python, "-I", "-c", "import ensurepip, venv"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_ANSWER_S,
        check=False,
    )
    return finished.returncode == 0


def python_version(python: Path) -> str | None:
    """What `python` says it is, as 3.12.1; None when it cannot be run."""
    try:
        finished = subprocess.run(
            [python, "-I", "-S", "-c", "import platform; print(platform.python_version())"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None


def _first_on_path(names: Iterable[str]) -> Path | None:
    for name in names:
        if (found := shutil.which(name)) is not None:
            return Path(found)
    return None


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
