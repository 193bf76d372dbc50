"""Makes the site-packages of an environment as pip leaves it, without pip."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from inferd.provision import record
from inferd.provision.recipes import RECIPES, Device, Pin, Recipe
from inferd.provision.record import InstallRecord, Step

WHEN = "2026-11-30T12:00:00+00:00"
PINS = "alpha==1.0\nbeta-two==2.0.1  # a remark\ntorch==2.13.0\n"


def install(site_packages: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Unpacks a package; returns its `.dist-info`."""
    info = site_packages / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    contents = {**files, f"{info.name}/METADATA": f"Name: {name}\nVersion: {version}\n"}
    rows = []
    for path, text in contents.items():
        file = site_packages / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        rows.append(f"{path},sha256={digest.decode().rstrip('=')},{len(text)}")
    rows.append(f"{info.name}/RECORD,,")
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return info


def install_all(site_packages: Path) -> None:
    """What PINS asks for."""
    install(site_packages, "alpha", "1.0", {"alpha/__init__.py": "A = 1\n", "alpha/b.py": "B\n"})
    install(site_packages, "Beta_Two", "2.0.1", {"beta.py": "B = 2\n", "../../bin/beta": "x"})
    install(site_packages, "torch", "2.13.0+cpu", {"torch/__init__.py": "T = 3\n"})


def recipes(folder: Path, pins: str = PINS) -> dict[Device, Recipe]:
    """Small recipes in place of the real ones."""
    made = {}
    for device, real in RECIPES.items():
        file = folder / f"{device}.txt"
        file.write_text(pins)
        made[device] = Recipe(
            device=device,
            file=file,
            pythons=real.pythons,
            disk_bytes=1_000,
            closed=real.closed,
            large=frozenset({"torch"}),
        )
    return made


def pins_of(text: str = PINS) -> list[Pin]:
    lines = (line.partition("#")[0].strip().split("==") for line in text.splitlines())
    return [Pin(name, version) for name, version in lines]


def finished(directory: Path, recipe: Recipe, python: str) -> InstallRecord:
    """Notes that an install of `recipe` went to its end."""
    steps = dict.fromkeys(Step, WHEN)
    made = InstallRecord(recipe.device, recipe.digest, python, steps)
    record.save(directory, made)
    return made
