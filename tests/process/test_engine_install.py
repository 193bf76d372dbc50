"""`inferd engine install` with the real pip and venv, on wheels made here: no network, no engine.

Goal: whatever state a folder is in, an install leaves it whole and does only what that takes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inferd.errors import ProvisionError
from inferd.provision import record
from inferd.provision.install import InstallRequest, install
from inferd.provision.recipes import Device
from inferd.provision.record import Step
from tests.process import wheels
from tests.process.install_rig import MACHINE, PINS, Place, Told, lay_out


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheelhouse")
    wheels.make_engine(made)
    return made


@pytest.fixture
def pip(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """pip finds packages in one folder only; the function names another one."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def find_in(folder: Path) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    find_in(wheelhouse)
    return find_in


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One environment for all tests of this module: each breaks it and has it repaired."""
    return lay_out(tmp_path_factory.mktemp("place"))


@pytest.fixture
def place(made: Place, pip: Callable[[Path], None]) -> Iterator[Place]:
    """The same, whole."""
    made.pin(PINS)
    made.install()
    yield made
    made.pin(PINS)


def test_from_nothing_to_an_engine_that_loads(
    tmp_path: Path, pip: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = lay_out(tmp_path)
    # What would send pip elsewhere does not.
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = Told()
    report = place.install(told)
    assert set(report.steps) == set(Step)
    assert report.proven
    assert report.device is Device.CPU
    assert report.versions == {
        "sglang": "0.5.23",
        "torch": "2.13.0+cpu",
        "transformers": "5.19.0",
    }
    place.assert_whole()
    assert "started packages: 4 packages of the cpu engine" in told.lines
    assert "finished proof: SGLang 0.5.23 loads, torch 2.13.0+cpu" in told.lines
    assert (place.environment.logs / "packages.log").read_text()


def test_a_second_run_does_nothing(place: Place) -> None:
    told = Told()
    report = place.install(told)
    assert report.steps == ()
    assert report.proven
    assert told.lines == []


def remove_a_package(place: Place) -> None:
    shutil.rmtree(place.site_packages / "alpha")


def remove_a_record_of_pip(place: Place) -> None:
    (place.site_packages / "alpha-1.0.dist-info/RECORD").unlink()


def cut_a_file(place: Place) -> None:
    (place.site_packages / "sglang/__init__.py").write_text("")


def claim_another_version(place: Place) -> None:
    (place.site_packages / "alpha-1.0.dist-info").rename(
        place.site_packages / "alpha-0.9.dist-info"
    )


def leave_half_an_update(place: Place) -> None:
    shutil.copytree(
        place.site_packages / "alpha-1.0.dist-info", place.site_packages / "alpha-0.9.dist-info"
    )
    (place.site_packages / "~lpha").mkdir()


def break_the_link_to_python(place: Place) -> None:
    place.environment.python.unlink()
    place.environment.python.symlink_to("/nowhere/python3")


def use_another_python(place: Place) -> None:
    folder = place.site_packages.parent
    folder.rename(folder.with_name("python3.10"))


def remove_pyvenv_cfg(place: Place) -> None:
    (place.environment.directory / "pyvenv.cfg").unlink()


def remove_a_file_of_the_model(place: Place) -> None:
    (place.models / "Tiny/tokenizer.json").unlink()


def alter_a_file_of_the_model(place: Place) -> None:
    (place.models / "Tiny/model.safetensors").write_text("Weights")


def remove_the_record(place: Place) -> None:
    (place.environment.directory / record.FILE).unlink()


def spoil_the_record(place: Place) -> None:
    (place.environment.directory / record.FILE).write_text("{")


def be_killed_while_converting(place: Place) -> None:
    shutil.rmtree(place.models / "Tiny")
    unfinished = place.models / ".Tiny.unfinished/Tiny"
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").write_text("")


@pytest.mark.parametrize(
    ("harm", "steps"),
    [
        (remove_a_package, {Step.PACKAGES, Step.PROOF}),
        (remove_a_record_of_pip, {Step.PACKAGES, Step.PROOF}),
        (cut_a_file, {Step.PACKAGES, Step.PROOF}),
        (claim_another_version, {Step.PACKAGES, Step.PROOF}),
        (leave_half_an_update, {Step.PACKAGES, Step.PROOF}),
        (break_the_link_to_python, {Step.ENVIRONMENT, Step.PACKAGES, Step.PROOF}),
        (use_another_python, {Step.ENVIRONMENT, Step.PACKAGES, Step.PROOF}),
        (remove_pyvenv_cfg, {Step.ENVIRONMENT, Step.PACKAGES, Step.PROOF}),
        (remove_a_file_of_the_model, {Step.MODEL}),
        (alter_a_file_of_the_model, {Step.MODEL}),
        (be_killed_while_converting, {Step.MODEL}),
        (remove_the_record, {Step.PACKAGES, Step.PROOF}),
        (spoil_the_record, {Step.PACKAGES, Step.PROOF}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_broken_is_repaired_and_nothing_else_done(
    place: Place, harm: Callable[[Place], None], steps: set[Step]
) -> None:
    harm(place)
    report = place.install()
    assert set(report.steps) == steps
    place.assert_whole()
    assert place.install().steps == ()


def test_another_pin_replaces_one_package(place: Place) -> None:
    place.pin(PINS.replace("alpha==1.0", "alpha==1.1"))
    told = Told()
    assert place.install(told).steps == (Step.PACKAGES, Step.PROOF)
    assert "started packages: 1 of 4 packages of the cpu engine" in told.lines
    place.assert_whole()


def test_an_interrupted_install_goes_on(
    place: Place, pip: Callable[[Path], None], wheelhouse: Path, tmp_path: Path
) -> None:
    shutil.rmtree(place.site_packages / "torch")
    shutil.rmtree(place.site_packages / "alpha")
    # Everything but alpha can be had.
    some = shutil.copytree(wheelhouse, tmp_path / "some")
    (some / "alpha-1.0-py3-none-any.whl").unlink()
    pip(some)
    with pytest.raises(ProvisionError) as caught:
        place.install()
    assert "no index that pip uses offers alpha==1.0" in caught.value.message
    assert str(place.environment.logs / "packages.log") in caught.value.message
    assert "goes on where it stopped" in caught.value.message
    assert place.environment.problems()
    pip(wheelhouse)
    assert place.install().steps == (Step.PACKAGES, Step.PROOF)
    place.assert_whole()


def test_without_a_network_the_cause_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr("inferd.provision.pip.RETRIES", 1)
    remove_a_package(place)
    with pytest.raises(ProvisionError, match=r"cause: pip cannot reach a package index"):
        place.install()


def test_torchs_cuda_build_is_refused_before_it_is_fetched(
    place: Place, pip: Callable[[Path], None], tmp_path: Path
) -> None:
    shutil.rmtree(place.site_packages / "torch")
    wheels.make(tmp_path, "torch", "2.13.0", {"torch/__init__.py": ""}, ["nvidia-cudnn-cu13==9"])
    pip(tmp_path)
    with pytest.raises(ProvisionError, match=r"CUDA build of torch.*--torch-index URL"):
        place.install()
    assert not (place.site_packages / "torch").exists()


def test_an_engine_that_does_not_load_is_not_called_installed(
    place: Place, pip: Callable[[Path], None], wheelhouse: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(wheelhouse, tmp_path / "broken")
    files = {**wheels.SGLANG, "sglang/launch_server.py": "raise ImportError('no kernels')\n"}
    wheels.make(broken, "sglang", "0.5.23", files)
    shutil.rmtree(place.site_packages / "sglang")
    pip(broken)
    with pytest.raises(ProvisionError) as caught:
        place.install()
    assert "proof failed (exit code 1)" in caught.value.message
    assert "ImportError: no kernels" in caught.value.message
    known = place.environment.record()
    assert known is not None
    assert Step.PROOF not in known.steps
    shutil.rmtree(place.site_packages / "sglang")
    pip(wheelhouse)
    assert Step.PROOF in place.install().steps


def test_another_device_is_another_environment(place: Place) -> None:
    told = Told()
    report = place.install(told, Device.CUDA)
    assert report.device is Device.CUDA
    assert not report.proven
    assert "note: the cpu engine is replaced by the cuda one" in told.lines
    assert any(line.startswith("note: no NVIDIA GPU is here") for line in told.lines)
    # Without being asked, the device stays.
    assert place.install().device is Device.CUDA
    assert Step.PROOF in place.install(device=Device.CPU).steps


def test_a_gpu_decides_for_a_new_engine_and_is_noted_for_an_old_one(place: Place) -> None:
    told = Told()
    report = place.install(told, here=replace(MACHINE, gpus=("NVIDIA H200",)))
    assert report.device is Device.CPU
    (note,) = told.lines
    assert "--cuda" in note


def test_too_little_space_is_told_before_anything_is_made(place: Place) -> None:
    remove_a_package(place)
    place.recipe = replace(place.recipe, disk_bytes=10**18)
    try:
        with pytest.raises(ProvisionError, match=r"1000000000\.\d GB are needed and .* free"):
            place.install()
    finally:
        place.recipe = replace(place.recipe, disk_bytes=1_000_000)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    place = lay_out(tmp_path)
    (tmp_path / "engine").write_text("a file")
    with pytest.raises(ProvisionError, match=r"engine: .*--directory"):
        place.install()


def test_without_model_none_is_made(place: Place) -> None:
    shutil.rmtree(place.models / "Tiny")
    request = InstallRequest(place.models, model=None)
    report = install(place.environment, request, Told(), MACHINE)
    assert report.model is None
    assert not (place.models / "Tiny").exists()
