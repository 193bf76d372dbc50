"""Proves that the engine loads, and says what torch sees; writes the answer as JSON.

A program of its own: it runs in the engine's python and is never imported by the gateway. What
it imports is what a worker's processes import, so the first worker finds the bytecode made.
Usage: python probe_engine.py ANSWER.json
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# The parent, scheduler and detokenizer processes, and the list of model families.
MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
)


def answer() -> dict[str, Any]:
    torch = import_module("torch")
    sglang = import_module("sglang")
    for module in MODULES:
        import_module(module)
    return {
        "python": sys.version.split()[0],
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
    }


def main(path: str) -> None:
    Path(path).write_text(json.dumps(answer()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
