"""Which torch pip would take. Goal: the CUDA build is refused before its download."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd.errors import ProvisionError
from inferd.provision.environment import EngineEnvironment
from inferd.provision.recipes import Pin
from inferd.provision.torch_build import question, require_cpu


def report(folder: Path, version: str, needs: list[str] | None) -> Path:
    metadata: dict[str, object] = {"name": "torch", "version": version}
    if needs is not None:
        metadata["requires_dist"] = needs
    path = folder / "torch.json"
    path.write_text(json.dumps({"version": "1", "install": [{"metadata": metadata}]}))
    return path


def test_the_cuda_build_is_refused_with_the_way_out(tmp_path: Path) -> None:
    needs = ["filelock", 'nvidia-cudnn-cu13==9.24.0.43; platform_system == "Linux"']
    with pytest.raises(ProvisionError, match=r"nvidia-cudnn-cu13==9.*--torch-index URL"):
        require_cpu(report(tmp_path, "2.13.0", needs))


@pytest.mark.parametrize("needs", [None, [], ["filelock", "sympy>=1.13.3"]])
def test_the_cpu_build_is_taken_whatever_it_is_called(
    tmp_path: Path, needs: list[str] | None
) -> None:
    require_cpu(report(tmp_path, "2.13.0+cpu", needs))
    require_cpu(report(tmp_path, "2.13.0", needs))


@pytest.mark.parametrize("index", [None, "http://index.example/cpu"])
def test_pip_is_asked_of_the_index_that_it_will_use(tmp_path: Path, index: str | None) -> None:
    environment = EngineEnvironment(tmp_path)
    asking, answer = question(environment, Pin("torch", "2.13.0"), index, tmp_path)
    assert {"--dry-run", "--no-deps", "torch==2.13.0"} <= set(asking.arguments)
    assert f"--report={answer}" in asking.arguments
    assert (f"--index-url={index}" in asking.arguments) is (index is not None)
