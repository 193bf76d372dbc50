"""What a machine has, read from copies of /dev and /proc. Goal: GPUs decide, nothing else."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from inferd.errors import ProvisionError
from inferd.provision import machine
from inferd.provision.recipes import RECIPES, Device
from tests.unit.provision.site_packages import recipes

CPUINFO = """\
processor : 0
model name\t: Some CPU @ 3.00GHz
flags\t\t: fpu avx512f {amx}
processor : 1
model name\t: Some CPU @ 3.00GHz
"""
DRIVER = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build
GCC version:  gcc version 12.3.0
"""


def lay_out(root: Path, *, gpus: int = 0, known: int | None = None, amx: bool = False) -> Path:
    """`gpus` devices that may be opened, `known` ones that the driver lists."""
    for made in ("dev", "proc/driver/nvidia/gpus"):
        (root / made).mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(CPUINFO.format(amx="amx_tile amx_bf16" if amx else ""))
    (root / "proc/meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    for number in range(gpus):
        (root / f"dev/nvidia{number}").touch()
    if gpus:
        (root / "dev/nvidiactl").touch()
        (root / "proc/driver/nvidia/version").write_text(DRIVER)
    for number in range(gpus if known is None else known):
        folder = root / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    return root


def test_a_machine_without_gpu(tmp_path: Path) -> None:
    here = machine.look(lay_out(tmp_path))
    assert here.gpus == ()
    assert here.driver is None
    assert here.device is Device.CPU
    assert here.cpu == "Some CPU @ 3.00GHz"
    assert not here.amx
    assert here.memory_bytes == 16_384_000 * 1_024
    assert here.cores >= 1


def test_amx_is_a_flag_of_the_cpu(tmp_path: Path) -> None:
    assert machine.look(lay_out(tmp_path, amx=True)).amx


def test_a_machine_with_gpus(tmp_path: Path) -> None:
    here = machine.look(lay_out(tmp_path, gpus=2))
    assert here.gpus == ("NVIDIA H200", "NVIDIA H200")
    assert here.driver == "580.95.05"
    assert here.device is Device.CUDA


def test_a_container_counts_the_devices_it_was_given(tmp_path: Path) -> None:
    assert machine.look(lay_out(tmp_path, gpus=1, known=8)).gpus == ("NVIDIA H200",)


def test_a_driver_without_devices_is_no_gpu(tmp_path: Path) -> None:
    assert machine.look(lay_out(tmp_path, gpus=0, known=8)).device is Device.CPU


def test_devices_that_the_driver_does_not_name(tmp_path: Path) -> None:
    assert machine.look(lay_out(tmp_path, gpus=1, known=0)).gpus == ("NVIDIA GPU",)


def test_nothing_readable_is_a_machine_with_nothing(tmp_path: Path) -> None:
    here = machine.look(tmp_path)
    assert (here.gpus, here.driver, here.memory_bytes) == ((), None, 0)


def test_free_space_of_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    assert machine.free_bytes(tmp_path / "a" / "b" / "c") == pytest.approx(
        machine.free_bytes(tmp_path), rel=0.1
    )


@pytest.mark.parametrize("platform", [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_other_platforms_are_told_what_to_do_instead(platform: tuple[str, str]) -> None:
    with pytest.raises(ProvisionError, match=r"Linux on x86_64.*attached"):
        machine.require_platform(*platform)
    machine.require_platform("Linux", "x86_64")


def test_the_running_python_makes_the_environment_if_it_can() -> None:
    assert machine.python_for(RECIPES[Device.CPU]) == Path(sys.executable)


def test_without_a_fitting_python_the_versions_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes(tmp_path)[Device.CPU]
    object.__setattr__(recipe, "pythons", ((2, 6), (2, 7)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProvisionError, match=r"needs Python 2\.6 or 2\.7; this is 3\.\d+"):
        machine.python_for(recipe)


def test_a_fitting_python_is_looked_for_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes(tmp_path)[Device.CPU]
    object.__setattr__(recipe, "pythons", ((2, 6), (2, 7)))
    found = program(tmp_path / "python2.7", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.python_for(recipe) == found


def test_a_python_without_venv_names_the_package_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes(tmp_path)[Device.CPU]
    object.__setattr__(recipe, "pythons", ((2, 7),))
    program(tmp_path / "python2.7", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProvisionError, match="apt-get install python3-venv"):
        machine.python_for(recipe)


def test_the_version_of_a_python_that_does_not_run_is_unknown(tmp_path: Path) -> None:
    assert machine.python_version(Path(sys.executable)) is not None
    assert machine.python_version(tmp_path / "python") is None
    assert machine.python_version(program(tmp_path / "python", "exit 3")) is None


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
