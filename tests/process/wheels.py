"""Makes wheels, so that a whole install runs with the real pip and without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0+cpu"
version = SimpleNamespace(cuda=None)
cuda = SimpleNamespace(device_count=lambda: 0)
"""
SGLANG = {
    "sglang/__init__.py": '__version__ = "0.5.23"\n',
    "sglang/launch_server.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/entrypoints/__init__.py": "",
    "sglang/srt/entrypoints/http_server.py": "",
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/managers/scheduler.py": "",
    "sglang/srt/managers/detokenizer_manager.py": "",
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/registry.py": "",
}


def make(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    needs: Sequence[str] = (),
) -> Path:
    """A pure wheel that installs `files` and declares `needs`."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    contents = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        rows.append(f"{path},sha256={digest.decode().rstrip('=')},{len(text.encode())}\n")
    contents[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return wheel


def make_engine(folder: Path) -> None:
    """Wheels that load as an engine does, and a package with a model in it."""
    make(folder, "sglang", "0.5.23", SGLANG)
    make(folder, "torch", "2.13.0+cpu", {"torch/__init__.py": TORCH})
    make(folder, "transformers", "5.19.0", {"transformers.py": ""})
    make(folder, "alpha", "1.0", {"alpha/__init__.py": "", "alpha/part.py": "A = 1\n"})
    make(folder, "alpha", "1.1", {"alpha/__init__.py": "", "alpha/part.py": "A = 2\n"})
    make(folder, "tiny", "1.0", {"tiny/tiny.gguf": "a GGUF file"})
