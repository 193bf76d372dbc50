"""The engine's environment. Goal: what is wrong is said; programs get what they need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from inferd.provision import record
from inferd.provision.environment import SHIMS, EngineEnvironment
from inferd.provision.recipes import Device
from inferd.provision.record import InstallRecord, Step
from tests.unit.provision.site_packages import finished, install_all, recipes

PYTHON = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def environment(tmp_path: Path) -> EngineEnvironment:
    """A whole one for the CPU, with this test's python as its own."""
    known = recipes(tmp_path)
    made = EngineEnvironment(tmp_path / "engine", known)
    (made.directory / "bin").mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    (made.directory / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    folder = f"python{sys.version_info.major}.{sys.version_info.minor}"
    install_all(made.directory / "lib" / folder / "site-packages")
    finished(made.directory, known[Device.CPU], PYTHON)
    return made


def test_a_whole_environment_has_no_problem(environment: EngineEnvironment) -> None:
    assert environment.problems() == []
    assert environment.problems(deep=True) == []
    installed = environment.installed()
    assert installed is not None
    assert installed.device is Device.CPU
    assert installed.python == PYTHON
    assert installed.versions == {"alpha": "1.0", "beta-two": "2.0.1", "torch": "2.13.0+cpu"}
    assert installed.key_versions["sglang"] == "missing"


def test_none_at_all(tmp_path: Path) -> None:
    environment = EngineEnvironment(tmp_path / "engine")
    assert environment.installed() is None
    (line,) = environment.problems()
    assert str(tmp_path / "engine") in line
    assert line.endswith(": run `inferd engine install`")


def test_a_missing_package(environment: EngineEnvironment) -> None:
    (info,) = environment.site_packages.glob("alpha-*")
    info.rename(info.with_name("gone"))
    (line,) = environment.problems()
    assert "alpha: not installed" in line
    assert line.endswith("run `inferd engine install`, which repairs it")


def test_a_missing_file_is_found_by_looking_deep(environment: EngineEnvironment) -> None:
    (environment.site_packages / "torch/__init__.py").unlink()
    assert environment.problems() == []
    (line,) = environment.problems(deep=True)
    assert "torch/__init__.py is missing" in line


def test_no_packages_at_all(environment: EngineEnvironment) -> None:
    for info in environment.site_packages.glob("*.dist-info"):
        info.rename(info.with_suffix(".gone"))
    (line,) = environment.problems()
    assert "none of the engine's 3 packages is installed" in line


def test_an_unfinished_install(environment: EngineEnvironment) -> None:
    known = environment.record()
    assert known is not None
    record.save(environment.directory, known.without(Step.PACKAGES))
    assert environment.installed() is None
    (line,) = environment.problems()
    assert "did not finish" in line


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("broken", ["dangling", "missing", "not executable", "no pyvenv.cfg"])
def test_a_broken_interpreter(environment: EngineEnvironment, broken: str, deep: bool) -> None:
    if broken == "no pyvenv.cfg":
        (environment.directory / "pyvenv.cfg").unlink()
    else:
        environment.python.unlink()
    if broken == "dangling":
        environment.python.symlink_to("/nowhere/python3")
    if broken == "not executable":
        environment.python.write_text("")
    (line,) = environment.problems(deep=deep)
    assert line.startswith("the engine's environment is broken (")
    assert line.endswith("run `inferd engine install`, which repairs it")


def test_an_interpreter_that_does_not_run(environment: EngineEnvironment) -> None:
    environment.python.unlink()
    environment.python.write_text("#!/bin/sh\nexit 1\n")
    environment.python.chmod(0o755)
    assert environment.problems() == []
    (line,) = environment.problems(deep=True)
    assert "does not run" in line


def test_packages_of_another_python(environment: EngineEnvironment) -> None:
    folder = environment.site_packages.parent
    folder.rename(folder.with_name("python3.1"))
    assert "another version" in (environment.interpreter_fault() or "")


def test_cpu_processes_get_the_shims_and_one_thread(environment: EngineEnvironment) -> None:
    inherited = {
        "PATH": "/bin",
        "HOME": "/root",
        "PYTHONPATH": "/gateway",
        "VIRTUAL_ENV": "/gateway",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    made = environment.env(inherited=inherited)
    assert made["PYTHONPATH"] == str(SHIMS)
    assert made["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["HOME"] == "/root"
    assert made["PATH"] == f"{environment.python.parent}{os.pathsep}/bin"
    assert not {"VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"} & set(made)
    assert environment.env({"OMP_NUM_THREADS": "2"}, inherited={})["OMP_NUM_THREADS"] == "2"


def test_gpu_processes_run_as_the_engine_came(environment: EngineEnvironment) -> None:
    record.save(environment.directory, InstallRecord(Device.CUDA, "digest"))
    made = environment.env(inherited={"PATH": "/bin"})
    assert not {"PYTHONPATH", "SGLANG_USE_CPU_ENGINE", "OMP_NUM_THREADS"} & set(made)


def test_the_command_is_the_environments_own_python(environment: EngineEnvironment) -> None:
    assert environment.command() == [
        str(environment.python),
        "-m",
        "sglang.launch_server",
    ]
    assert Path(environment.command()[0]).is_absolute()


def test_the_version_of_pip(environment: EngineEnvironment) -> None:
    assert environment.pip_version == "0"
    (environment.site_packages / "pip-26.3.dist-info").mkdir()
    assert environment.pip_version == "26.3"
