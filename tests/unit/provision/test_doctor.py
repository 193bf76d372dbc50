"""The doctor. Goal: what keeps engines from serving is a problem, and each has a next step."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inferd.provision import record
from inferd.provision.demo_model import DEMO
from inferd.provision.doctor import Diagnosis, Level, examine
from inferd.provision.environment import EngineEnvironment
from inferd.provision.machine import Machine
from inferd.provision.recipes import Device
from inferd.provision.record import Step
from tests.unit.provision.site_packages import WHEN, finished, install, install_all, recipes

CPU_MACHINE = Machine((), None, "Some CPU", 4, amx=False, memory_bytes=32_000_000_000)
GPU_MACHINE = replace(CPU_MACHINE, gpus=("NVIDIA H200",) * 8, driver="580.95.05")
PINS = "alpha==1.0\nbeta-two==2.0.1\ntorch==2.13.0\nsglang==0.5.23\ntransformers==5.19.0\n"


def make(folder: Path, device: Device = Device.CPU) -> EngineEnvironment:
    """A whole environment of the small recipe."""
    known = recipes(folder, PINS)
    made = EngineEnvironment(folder / "engine", known)
    (made.directory / "bin").mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    (made.directory / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = made.directory / "lib" / version / "site-packages"
    install_all(site_packages)
    install(site_packages, "sglang", "0.5.23", {"sglang/__init__.py": "S = 1\n"})
    install(site_packages, "transformers", "5.19.0", {"transformers/__init__.py": "T = 1\n"})
    finished(made.directory, known[device], "3.12.1")
    return made


def problems(diagnosis: Diagnosis) -> dict[str, str]:
    return {
        finding.subject: finding.text
        for finding in diagnosis.findings
        if finding.level is Level.PROBLEM
    }


def test_a_whole_cpu_engine_can_serve(tmp_path: Path) -> None:
    diagnosis = examine(make(tmp_path), tmp_path, here=CPU_MACHINE)
    assert diagnosis.can_serve
    assert diagnosis.device is Device.CPU
    assert diagnosis.versions["sglang"] == "0.5.23"
    assert diagnosis.versions["torch"] == "2.13.0+cpu"
    texts = {finding.subject: finding.text for finding in diagnosis.findings}
    assert texts["loads"] == f"seen to load on {WHEN}"
    assert "no NVIDIA GPU, 4 cores of Some CPU without AMX" in texts["machine"]
    works = {feature.name: feature.works for feature in diagnosis.features}
    assert works["tool calls"] == "yes"
    assert works["speculative decoding"] == "no"
    assert works["LoRA adapters"] == "yes"
    assert works["prefill and decode on separate workers"] == "on request"


def test_every_problem_and_note_has_a_next_step(tmp_path: Path) -> None:
    environment = make(tmp_path)
    (environment.site_packages / "alpha/b.py").unlink()
    diagnosis = examine(environment, tmp_path, here=GPU_MACHINE)
    bad = [finding for finding in diagnosis.findings if finding.level is not Level.OK]
    assert len(bad) >= 3
    assert all(finding.next_step for finding in bad)


def test_nothing_installed(tmp_path: Path) -> None:
    diagnosis = examine(EngineEnvironment(tmp_path / "engine"), tmp_path, here=CPU_MACHINE)
    assert not diagnosis.can_serve
    assert "no engine is installed" in problems(diagnosis)["engine"]
    assert diagnosis.device is None
    assert diagnosis.versions == {}
    assert len(diagnosis.features) > 5
    document = json.loads(json.dumps(diagnosis.document()))
    assert document["can_serve"] is False
    assert document["device"] is None


def test_a_missing_file(tmp_path: Path) -> None:
    environment = make(tmp_path)
    (environment.site_packages / "alpha/b.py").unlink()
    diagnosis = examine(environment, tmp_path, here=CPU_MACHINE)
    assert "alpha/b.py is missing" in problems(diagnosis)["engine"]


def test_a_gpu_engine_without_a_gpu_cannot_serve(tmp_path: Path) -> None:
    diagnosis = examine(make(tmp_path, Device.CUDA), tmp_path, here=CPU_MACHINE)
    assert "none is here" in problems(diagnosis)["device"]


@pytest.mark.parametrize(("driver", "ok"), [("580.95.05", True), ("570.10", False), (None, False)])
def test_the_driver_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str | None, ok: bool
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    here = replace(GPU_MACHINE, driver=driver)
    diagnosis = examine(make(tmp_path, Device.CUDA), tmp_path, here=here)
    assert ("driver" not in problems(diagnosis)) is ok
    assert diagnosis.can_serve is ok
    assert {feature.works for feature in diagnosis.features} == {"unverified"}


@pytest.mark.parametrize(
    ("device", "missing"), [(Device.CPU, {"lscpu"}), (Device.CUDA, {"compiler"})]
)
def test_programs_that_the_engine_starts_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device, missing: set[str]
) -> None:
    here = CPU_MACHINE if device is Device.CPU else GPU_MACHINE
    environment = make(tmp_path, device)
    assert examine(environment, tmp_path, here=here).can_serve
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(problems(examine(environment, tmp_path, here=here))) == missing


def test_a_cpu_engine_beside_a_gpu_serves_and_is_noted(tmp_path: Path) -> None:
    diagnosis = examine(make(tmp_path), tmp_path, here=GPU_MACHINE)
    assert diagnosis.can_serve
    (note,) = (finding for finding in diagnosis.findings if finding.subject == "device")
    assert note.level is Level.NOTE
    assert "--cuda" in (note.next_step or "")


def test_an_engine_that_was_never_loaded_is_noted(tmp_path: Path) -> None:
    environment = make(tmp_path)
    known = environment.record()
    assert known is not None
    record.save(environment.directory, known.without(Step.PROOF))
    diagnosis = examine(environment, tmp_path, here=CPU_MACHINE)
    assert diagnosis.can_serve
    (note,) = (finding for finding in diagnosis.findings if finding.subject == "loads")
    assert note.level is Level.NOTE


def test_looking_deep_reads_every_file_and_loads_the_engine(tmp_path: Path) -> None:
    environment = make(tmp_path)
    (environment.site_packages / "alpha/b.py").write_text("C\n")
    found = problems(examine(environment, tmp_path, deep=True, here=CPU_MACHINE))
    assert "alpha/b.py has other contents" in found["files"]
    # The python of this environment has no engine at all.
    assert found["loads"].startswith("the engine does not load (exit code 1): ")
    assert (environment.logs / "doctor.log").read_text()


def test_a_broken_demo_model_is_a_problem_and_none_is_not(tmp_path: Path) -> None:
    environment = make(tmp_path)
    assert examine(environment, tmp_path, here=CPU_MACHINE).can_serve
    DEMO.folder(tmp_path).mkdir()
    found = problems(examine(environment, tmp_path, here=CPU_MACHINE))
    assert "config.json is missing" in found["demo model"]


def test_amx_is_told(tmp_path: Path) -> None:
    here = replace(CPU_MACHINE, amx=True)
    diagnosis = examine(make(tmp_path), tmp_path, here=here)
    (amx,) = (feature for feature in diagnosis.features if feature.name == "AMX")
    assert amx.remark.startswith("this CPU has it")
