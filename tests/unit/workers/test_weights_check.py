from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferd.errors import ProvisionError
from inferd.provision import model_folder
from inferd.workers import weights_check
from inferd.workers.weights_check import WeightsCheck

pytestmark = pytest.mark.real_time


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "a.safetensors", "b.safetensors"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were hashed."""
    names: list[str] = []
    real = model_folder.sha256_of

    def counted(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(model_folder, "sha256_of", counted)
    return names


async def test_a_complete_folder_without_a_checksum_is_not_hashed(
    folder: Path, hashed: list[str]
) -> None:
    await WeightsCheck().check(folder, None)
    assert hashed == []


async def test_an_incomplete_folder_names_all_that_lacks(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "b.safetensors").write_text("")
    with pytest.raises(ProvisionError) as caught:
        await WeightsCheck().check(folder, None)
    assert "config.json is missing" in caught.value.message
    assert "b.safetensors is missing or empty" in caught.value.message
    assert caught.value.message.endswith("copy the model folder again, or correct `weights`")


async def test_unchanged_files_are_hashed_once(folder: Path, hashed: list[str]) -> None:
    checksum = model_folder.write_manifest(folder).checksum
    hashed.clear()
    check = WeightsCheck()
    await check.check(folder, checksum)
    assert sorted(hashed) == ["a.safetensors", "b.safetensors", "config.json", "tokenizer.json"]
    await check.check(folder, checksum)
    assert len(hashed) == 4
    os.utime(folder / "a.safetensors", (1, 1))
    await check.check(folder, checksum)
    assert len(hashed) == 8


async def test_one_flipped_bit_is_found_again_and_again(folder: Path) -> None:
    checksum = model_folder.write_manifest(folder).checksum
    check = WeightsCheck()
    await check.check(folder, checksum)
    (folder / "a.safetensors").write_text("{|")
    for _ in range(2):
        with pytest.raises(ProvisionError, match=r"a\.safetensors has other contents"):
            await check.check(folder, checksum)


async def test_a_manifest_of_another_model_is_told_without_hashing(
    folder: Path, hashed: list[str]
) -> None:
    model_folder.write_manifest(folder)
    hashed.clear()
    with pytest.raises(ProvisionError, match=r"has the checksum sha256:\w+ instead of sha256:0+"):
        await WeightsCheck().check(folder, "sha256:" + "0" * 64)
    (folder / "manifest.json").unlink()
    with pytest.raises(ProvisionError, match=r"manifest\.json is missing"):
        await WeightsCheck().check(folder, "sha256:" + "0" * 64)
    assert hashed == []


async def test_who_is_let_go_meanwhile_does_not_wait_for_the_rest(
    folder: Path, hashed: list[str]
) -> None:
    checksum = model_folder.write_manifest(folder).checksum
    hashed.clear()
    check = WeightsCheck()
    await check.check(folder, checksum, over=lambda: len(hashed) >= 2)
    assert len(hashed) == 2
    await check.check(folder, checksum)
    assert len(hashed) == 6  # what was not finished does not count as checked


def test_a_file_that_vanishes_changes_the_signature(folder: Path) -> None:
    manifest = model_folder.write_manifest(folder)
    before = weights_check._signature(folder, manifest)
    (folder / "b.safetensors").unlink()
    assert weights_check._signature(folder, manifest) != before
