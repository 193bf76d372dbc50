"""The shims in a python of their own. Goal: imports work, a call of a missing kernel does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferd.provision.environment import SHIMS

TORCH = """
calls = []
class Event: pass
class Tensor:
    def pin_memory(self): raise RuntimeError("no accelerator")
class library:
    def define(name, schema): calls.append((name, schema))
class cuda:
    Event = Event
    def current_stream(): raise RuntimeError("no CUDA")
def empty(*size, pin_memory=False):
    if pin_memory: raise RuntimeError("no accelerator")
    return size
arange = empty_like = full = ones = ones_like = tensor = zeros = zeros_like = empty
"""
TORCHVISION = """
import torch
assert [name for name, _ in torch.calls] == ["torchvision::nms", "torchvision::qnms"], torch.calls
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "torchvision.py").write_text(TORCHVISION)
    return tmp_path


def run(code: str, *, stand_ins: Path, **env: str) -> str:
    """Standard output of `code` in a python that has the shims."""
    path = os.pathsep.join([str(SHIMS), str(stand_ins)])
    finished = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={"PYTHONPATH": path, **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_operators_are_declared_just_before_torchvision_is_imported(stand_ins: Path) -> None:
    code = "import torch; assert torch.calls == []; import torchvision; print(len(torch.calls))"
    assert run(code, stand_ins=stand_ins) == "2\n"


def test_nothing_happens_without_torchvision(stand_ins: Path) -> None:
    assert run("import sys; print('torch' in sys.modules)", stand_ins=stand_ins) == "False\n"


def test_a_start_does_not_stop_for_garbage(stand_ins: Path) -> None:
    code = "import gc; print(gc.isenabled(), gc.get_threshold()[0])"
    assert run(code, stand_ins=stand_ins) == "True 100000\n"


def test_torchvision_imports_torch_by_itself(stand_ins: Path) -> None:
    assert run("import torchvision; print('in')", stand_ins=stand_ins) == "in\n"


def test_pinning_is_left_alone_unless_asked(stand_ins: Path) -> None:
    code = """
import torch, torchvision
try: torch.empty(2, pin_memory=True)
except RuntimeError as error: print(error)
"""
    assert run(code, stand_ins=stand_ins) == "no accelerator\n"


def test_asked_for_pinned_memory_events_and_streams_do_nothing(stand_ins: Path) -> None:
    code = """
import torch, torchvision
assert torch.empty(2, pin_memory=True) == (2,)
assert torch.zeros(3) == (3,)
tensor = torch.Tensor()
assert tensor.pin_memory() is tensor
event = torch.cuda.Event(enable_timing=True)
event.record(); event.wait(); event.synchronize()
assert event.query() and event.elapsed_time(event) == 0.0
stream = torch.cuda.current_stream()
stream.wait_stream(stream); stream.wait_event(event); stream.synchronize()
assert stream.record_event(event) is event and stream.record_event().query() and stream.query()
print("done")
"""
    assert run(code, stand_ins=stand_ins, INFERD_SHIM_UNPINNED="1") == "done\n"


def test_kernels_can_be_imported_and_not_called(stand_ins: Path) -> None:
    code = """
import sgl_kernel
from sgl_kernel import rotate_input_ids_cpu, verify_tree_greedy_cpu as verify
assert rotate_input_ids_cpu.__name__ == "rotate_input_ids_cpu"
assert sgl_kernel.__version__ and not hasattr(sgl_kernel, "__wrapped__")
try: verify(1, key=2)
except NotImplementedError as error: print(error)
"""
    assert "verify_tree_greedy_cpu needs the CUDA kernels" in run(code, stand_ins=stand_ins)
