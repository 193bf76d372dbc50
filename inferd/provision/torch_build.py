"""Finds out, before the download, whether pip would take torch's CPU build for a CPU engine.

The CUDA build has the same name and version, is five times as large, and does not load beside
the rest of the CPU recipe. What it declares gives it away: it needs NVIDIA's libraries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferd.errors import ProvisionError
from inferd.provision import pip
from inferd.provision.environment import EngineEnvironment
from inferd.provision.programs import Program
from inferd.provision.recipes import Pin

_CUDA_ONLY = ("cuda-", "nvidia-")


def index_arguments(torch_index: str | None) -> list[str]:
    return [] if torch_index is None else [f"--index-url={torch_index}"]


def question(
    environment: EngineEnvironment, torch: Pin, torch_index: str | None, temporary: Path
) -> tuple[Program, Path]:
    """A program that asks pip what it would install, and where it writes the answer."""
    report = temporary / "torch.json"
    arguments = [
        *pip.install_arguments([str(torch)], closed=True),
        *index_arguments(torch_index),
        "--dry-run",
        "--ignore-installed",
        f"--report={report}",
    ]
    log = environment.logs / "torch-build.log"
    asking = pip.program("torch-build", environment.python, arguments, log=log, temporary=temporary)
    return asking, report


def require_cpu(report: Path) -> None:
    """ProvisionError when the answer in `report` is torch's CUDA build."""
    document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    for package in document["install"]:
        needs: Sequence[str] = package["metadata"].get("requires_dist", ())
        cuda = [need for need in needs if need.lower().startswith(_CUDA_ONLY)]
        if cuda:
            version = package["metadata"]["version"]
            raise ProvisionError(
                f"pip would install the CUDA build of torch {version} (it needs "
                f"{cuda[0].partition(';')[0].strip()}), and a CPU engine needs the CPU build. "
                "Run `inferd engine install --torch-index URL` with the address of PyTorch's own "
                "package index for CPU builds (their installation page names it), or of a mirror"
            )
