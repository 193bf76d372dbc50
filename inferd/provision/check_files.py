"""Whether the model folders that inferd.toml names can be served. Reads the disk; blocks.

Loading the file does not look at them, so that one can be checked on another machine. Beside what
`model_folder` knows, this finds files that were cut short, by the header of each safetensors file,
and limits that the model was not made for; neither reads the weights.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from inferd.config.checks import versions_of
from inferd.config.load import LoadedConfig
from inferd.config.problems import Problem, render
from inferd.config.schema import Model
from inferd.config.version import Version
from inferd.provision import model_folder

HEADER_BYTES_MAX: Final = 104_857_600
"""The format's own limit."""
_LENGTH: Final = struct.Struct("<Q")
_LONGER_CONTEXT: Final = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def check_files(loaded: LoadedConfig, *, checksums: bool = False) -> list[str]:
    """Problems of model folders, one line each as `load_config` writes them; [] when all is well.

    `checksums` also compares every `checksum` of the file, which reads the whole of the weights.
    """
    found: list[Problem] = []
    for path, model, version in versions_of(loaded.config):
        if version.weights is not None:
            folder = loaded.resolve(version.weights)
            reasons = _problems(folder, model, version, checksums=checksums)
            found += [Problem((*path, "weights"), reason) for reason in reasons]
        for number, adapter in enumerate(version.adapters):
            reasons = list(_adapter_problems(loaded.resolve(adapter.weights), version))
            found += [Problem((*path, "adapters", number, "weights"), one) for one in reasons]
    return render(found, loaded.name, loaded.locations)


def _problems(folder: Path, model: Model, version: Version, *, checksums: bool) -> list[str]:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        return [
            f"{folder} {what}: put the model there; `inferd engine install` makes the demo model"
        ]
    try:
        if incomplete := model_folder.problems(folder):
            return [f"{reason}: copy the whole model folder" for reason in incomplete]
        cut_short = [file for file in sorted(folder.glob("*.safetensors")) if not _is_whole(file)]
        if cut_short:
            return [f"{file} is cut short or damaged: copy it again" for file in cut_short]
        changed = model_folder.problems(folder, version.checksum) if checksums else []
        return [*changed, *_context_problems(folder, model, version)]
    except OSError as error:
        return [
            f"{error.filename or folder} cannot be read ({error.strerror}): see its permissions"
        ]


def _adapter_problems(folder: Path, version: Version) -> Iterator[str]:
    """The engine would say the same when it loads the adapter, but only then."""
    lora = version.engine.lora
    weights = folder / "adapter_model.safetensors"
    try:
        told = json.loads((folder / "adapter_config.json").read_bytes())
        rank, modules = told.get("r"), told.get("target_modules")
        if not weights.is_file() or not _is_whole(weights):
            yield f"{weights} is missing or cut short: copy the whole adapter folder"
    except (OSError, ValueError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON object"
        yield f"{folder}/adapter_config.json cannot be read ({why}): copy the whole adapter folder"
        return
    if lora is not None and isinstance(rank, int) and rank > lora.rank_max:
        yield f"{folder} has rank {rank}: raise engine.lora.rank_max, {lora.rank_max}"
    others = set(modules) - set(lora.targets) if lora and isinstance(modules, list) else set()
    if lora is not None and others and "all" not in lora.targets:
        yield f"{folder} changes {', '.join(sorted(others))}: add it to engine.lora.targets"


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack(start)
        if length > min(size, HEADER_BYTES_MAX):
            return False
        try:
            header = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return False
    return bool(size == _LENGTH.size + length + max(ends, default=0))


def _context_problems(folder: Path, model: Model, version: Version) -> Iterator[str]:
    """The engine refuses to start with a longer context than the model was made for."""
    config = json.loads((folder / "config.json").read_bytes())
    positions = _positions(config)
    allowed = _LONGER_CONTEXT in version.engine.env
    if positions and model.context_tokens_max > positions and not allowed:
        yield (
            f"{folder} reads at most {positions:,} tokens: lower context_tokens_max,"
            f" {model.context_tokens_max:,}"
        )


def _positions(config: dict[str, Any]) -> int | None:
    """The longest context by config.json, with its rope scaling at most; None: not told."""
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    return int(positions * max(1, factor)) if isinstance(factor, int | float) else positions
