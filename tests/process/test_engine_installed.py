"""What `inferd engine install` really made here. Goal: whole, known to the byte, shims at work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inferd.provision import demo_model, environment, install
from inferd.provision.demo_model import DEMO
from inferd.provision.environment import EngineEnvironment
from tests.fakes.engines import DEMO_MODEL, ENGINE_ENVIRONMENT, REPOSITORY

pytestmark = [pytest.mark.engine, pytest.mark.slow]

COMMAND_S = 120.0
PERMUTED = """
import importlib.util, numpy, sys
spec = importlib.util.spec_from_file_location("convert_gguf", sys.argv[1])
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)
heads, size, width = 3, 8, 5
right = numpy.arange(heads * size * width).reshape(heads * size, width)
# As llama.cpp stores it: of each head, row 0 of both halves, row 1 of both halves, ...
stored = numpy.concatenate([
    right[head * size + half * size // 2 + row][None]
    for head in range(heads) for row in range(size // 2) for half in range(2)
])
assert not (stored == right).all()
assert (convert.unpermuted(stored, heads) == right).all()
assert convert.shortest(numpy.float32(1e-5)) == 1e-5
print("equal")
"""
TORCHVISION = """
import torchvision, torch
try: torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except NotImplementedError: print("declared, not faked")
"""
UNPINNED = "import torchvision, torch; print(torch.empty(2, pin_memory=True).shape)"
STUB = """
from sgl_kernel import copy_all_layer_kv_cache_cpu
try: copy_all_layer_kv_cache_cpu()
except NotImplementedError as error: print(error)
"""


def inferd(*arguments: str) -> dict[str, object]:
    """Runs `inferd engine ... --json` in the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "inferd", "engine", *arguments, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    document: dict[str, object] = json.loads(done.stdout)
    return document


def in_engine(code: str, *arguments: str, **extra: str) -> str:
    """Standard output of `code` in the engine's python."""
    made = EngineEnvironment(ENGINE_ENVIRONMENT)
    done = subprocess.run(
        [str(made.python), "-c", code, *arguments],
        env=made.env(extra),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_installing_again_does_nothing() -> None:
    report = inferd("install")
    assert report["changed"] is False
    assert report["steps"] == []


def test_the_doctor_finds_it_whole() -> None:
    diagnosis = inferd("doctor")
    assert diagnosis["can_serve"] is True
    versions = diagnosis["versions"]
    assert isinstance(versions, dict)
    assert versions["sglang"] == "0.5.23"
    assert DEMO.problems(DEMO_MODEL.parent) == []


def test_the_gateway_never_imports_the_engine() -> None:
    names = [module.__name__ for module in (demo_model, environment, install)]
    code = f"import {', '.join(names)}, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=COMMAND_S
    )
    assert not {"torch", "sglang", "numpy", "transformers"} & set(done.stdout.split())


def test_q_and_k_rows_come_back_in_order() -> None:
    converter = Path(demo_model.__file__).with_name("convert_gguf.py")
    assert in_engine(PERMUTED, str(converter)) == "equal"


def test_torchvision_loads_and_its_operators_are_not_faked() -> None:
    if EngineEnvironment(ENGINE_ENVIRONMENT).env().get("SGLANG_USE_CPU_ENGINE") != "1":
        pytest.skip("the shims are for the CPU engine")
    assert in_engine(TORCHVISION) == "declared, not faked"
    assert in_engine(UNPINNED, INFERD_SHIM_UNPINNED="1") == "torch.Size([2])"
    assert "copy_all_layer_kv_cache_cpu needs the CUDA kernels" in in_engine(STUB)
