"""A place to install an engine in that is small and made here: recipe, model, what is told."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from inferd.provision import model_folder
from inferd.provision.demo_model import DemoModel
from inferd.provision.environment import EngineEnvironment
from inferd.provision.install import InstallReport, InstallRequest, install
from inferd.provision.machine import Machine
from inferd.provision.recipes import Device, Pin, Recipe
from inferd.provision.record import Step

PINS = "alpha==1.0\nsglang==0.5.23\ntorch==2.13.0\ntransformers==5.19.0\n"
MACHINE = Machine((), None, "Some CPU", 2, amx=False, memory_bytes=8_000_000_000)
FILES = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}
CONVERTER = f"""
import sys
from pathlib import Path
import torch
assert Path(sys.argv[-2]).read_text() == "a GGUF file"
for name, text in {FILES!r}.items():
    (Path(sys.argv[-1]) / name).write_text(text)
"""


class Told:
    """Progress, as it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def started(self, step: Step, text: str) -> None:
        self.lines.append(f"started {step}: {text}")

    def detail(self, step: Step, text: str) -> None:
        pass

    def finished(self, step: Step, text: str) -> None:
        self.lines.append(f"finished {step}: {text}")

    def note(self, text: str) -> None:
        self.lines.append(f"note: {text}")


@dataclass
class Place:
    """A folder with an environment, and what goes into it."""

    folder: Path
    recipe: Recipe
    model: DemoModel

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def environment(self) -> EngineEnvironment:
        recipes = {device: replace(self.recipe, device=device) for device in Device}
        return EngineEnvironment(self.folder / "engine", recipes)

    @property
    def site_packages(self) -> Path:
        return self.environment.site_packages

    def install(
        self,
        told: Told | None = None,
        device: Device | None = None,
        here: Machine = MACHINE,
        torch_index: str | None = None,
    ) -> InstallReport:
        request = InstallRequest(self.models, device, torch_index, self.model)
        return install(self.environment, request, told or Told(), here)

    def pin(self, text: str) -> None:
        """Asks for other packages from now on."""
        file = self.recipe.file.with_name(f"{hashlib.sha256(text.encode()).hexdigest()}.txt")
        file.write_text(text)
        self.recipe = replace(self.recipe, file=file)

    def assert_whole(self) -> None:
        assert self.environment.problems(deep=True) == []
        assert self.model.problems(self.models) == []
        assert [path.name for path in self.models.iterdir() if path.is_dir()] == ["Tiny"]
        assert not (self.environment.directory / "tmp").exists()


def lay_out(folder: Path) -> Place:
    right = folder / "right"
    right.mkdir()
    for name, text in FILES.items():
        (right / name).write_text(text)
    manifest = folder / "right.json"
    manifest.write_text(model_folder.measure(right).text())
    converter = folder / "convert.py"
    converter.write_text(CONVERTER)
    pins = folder / "pins.txt"
    pins.write_text(PINS)
    model = DemoModel(
        name="Tiny",
        package=Pin("tiny", "1.0"),
        gguf="tiny/tiny.gguf",
        gguf_sha256=hashlib.sha256(b"a GGUF file").hexdigest(),
        manifest_file=manifest,
        generation={},
        converter=converter,
    )
    recipe = Recipe(
        device=Device.CPU,
        file=pins,
        pythons=((3, 11), (3, 12), (3, 13)),
        disk_bytes=1_000_000,
        closed=True,
        large=frozenset({"torch"}),
    )
    return Place(folder, recipe, model)
