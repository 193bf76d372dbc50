"""Model folders. Goal: what is missing or changed is named, and a checksum stands for it all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.errors import ProvisionError
from inferd.provision.model_folder import (
    MANIFEST,
    File,
    Manifest,
    measure,
    parse,
    problems,
    write_manifest,
)


def make(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "model")


def test_a_whole_folder_has_no_problem(folder: Path) -> None:
    assert problems(folder) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert problems(tmp_path / "no") == [f"{tmp_path / 'no'} does not exist"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "config.json is not readable JSON"),
        ("config.json", "[]", "config.json is not readable JSON"),
        ("tokenizer.json", None, "the tokenizer is missing (tokenizer.json or tokenizer.model)"),
        ("tokenizer.json", "", "the tokenizer is missing (tokenizer.json or tokenizer.model)"),
        ("model.safetensors", None, "the weights are missing (*.safetensors)"),
        ("model.safetensors", "", "model.safetensors is missing or empty"),
    ],
)
def test_each_missing_part_is_named(
    folder: Path, name: str, text: str | None, problem: str
) -> None:
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    assert problems(folder) == [f"{folder}: {problem}"]


def test_every_part_that_the_index_names_must_be_there(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert problems(folder) == [f"{folder}: model-2.safetensors is missing or empty"]


@pytest.mark.parametrize("index", [{}, {"weight_map": 3}, {"weight_map": {}}])
def test_an_index_that_names_nothing_is_a_problem(folder: Path, index: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert problems(folder) == [f"{folder}: the weights are missing (*.safetensors)"]


def test_the_checksum_is_of_the_manifest_and_holds(folder: Path) -> None:
    manifest = write_manifest(folder)
    text = (folder / MANIFEST).read_bytes()
    assert manifest.checksum == f"sha256:{hashlib.sha256(text).hexdigest()}"
    assert problems(folder, manifest.checksum) == []
    # Written again, it is the same: it does not list itself.
    assert write_manifest(folder).checksum == manifest.checksum


@given(
    name=st.sampled_from(["config.json", "tokenizer.json", "model.safetensors", "sub/extra.txt"]),
    addition=st.binary(max_size=4),
)
def test_any_change_of_any_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, name: str, addition: bytes
) -> None:
    folder = make(tmp_path_factory.mktemp("models") / "model")
    (folder / "sub").mkdir()
    (folder / "sub/extra.txt").write_text("extra")
    checksum = write_manifest(folder).checksum
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(addition + before[len(addition) :])
    found = problems(folder, checksum)
    changed = (folder / name).read_bytes() != before
    # A file that is no longer whole is told as such, before anything is hashed.
    assert bool(found) is changed
    assert all(name in line for line in found)


def test_another_manifest_is_not_the_recorded_one(folder: Path) -> None:
    checksum = write_manifest(folder).checksum
    (folder / "tokenizer.json").write_text('{"a": 1}')
    other = write_manifest(folder).checksum
    (line,) = problems(folder, checksum)
    assert checksum in line
    assert other in line


def test_a_missing_or_broken_manifest_says_how_to_get_one(folder: Path) -> None:
    (line,) = problems(folder, f"sha256:{'0' * 64}")
    assert f"inferd engine manifest {folder}" in line
    (folder / MANIFEST).write_text("{")
    (line,) = problems(folder, f"sha256:{'0' * 64}")
    assert "unreadable" in line


def test_an_incomplete_folder_gets_no_manifest(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ProvisionError, match=r"config\.json is missing"):
        write_manifest(folder)
    assert not (folder / MANIFEST).exists()


def test_hidden_files_are_not_part_of_a_model(folder: Path) -> None:
    before = measure(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache/x").write_text("x")
    (folder / ".lock").write_text("")
    assert measure(folder) == before


def test_a_manifest_is_the_same_in_any_order() -> None:
    files = (File("b", 1, "bb"), File("a", 2, "aa"))
    manifest = Manifest(files)
    assert manifest.text() == Manifest(files[::-1]).text()
    assert set(parse(manifest.text()).files) == set(files)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "files": [1]}'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        parse(text)
