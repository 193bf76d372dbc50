"""Whether the folders that inferd.toml names hold whole models. Reads the disk; blocks.

A copy that stopped half-way is found from file names, sizes and the headers of the safetensors
files, without reading the weights. Checksums read all of them, so they are compared on request.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from inferd.config.checks import versions_of
from inferd.config.load import LoadedConfig
from inferd.config.locate import KeyPath
from inferd.config.problems import Problem, render
from inferd.config.schema import Model, Version

JSON_BYTES_MAX: Final = 104_857_600
"""Of config.json, an index or a safetensors header; the format's own limit for a header."""

_TOKENIZERS: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "*.tiktoken",
)
_INDEX: Final = "model.safetensors.index.json"
_LONGER_CONTEXT: Final = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


class _WrongFile(Exception):
    """What is wrong with one file; the message is the whole reason."""


def check_files(loaded: LoadedConfig, *, checksums: bool = False) -> list[str]:
    """Problems of model folders, one line each as `load_config` writes them; [] when all is well.

    `checksums` also compares every `checksum` of the file, which reads the whole of the weights.
    """
    problems: list[Problem] = []
    for path, model, version in versions_of(loaded.config):
        if version.weights is not None:
            folder = loaded.resolve(version.weights)
            wrong = list(_folder_problems(folder)) or list(_config_problems(folder, model, version))
            at: KeyPath = (*path, "weights")
            problems += [Problem(at, f"{version.weights}: {reason}") for reason in wrong]
            if checksums and not wrong and version.checksum not in (None, folder_checksum(folder)):
                is_now = f"is not that of {version.weights}, which is {folder_checksum(folder)}"
                problems.append(Problem((*path, "checksum"), is_now))
    return render(problems, str(loaded.path), loaded.locations)


def folder_checksum(folder: Path) -> str:
    """`sha256:` and the digest of the folder's manifest. Raises OSError.

    The manifest has a line for each file, in the byte order of their paths, as `sha256sum` writes
    it: digest, two spaces, path from the folder. Hidden files and folders do not count.
    """
    manifest = "".join(
        f"{_digest(folder / name)}  {name}\n"
        for name in sorted(_file_names(folder), key=str.encode)
    )
    return "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()


def _file_names(folder: Path) -> Iterator[str]:
    for file in folder.rglob("*"):
        name = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _folder_problems(folder: Path) -> Iterator[str]:
    """What is missing or cut short."""
    if not folder.is_dir():
        exists = "is not a folder" if folder.exists() else "no such folder"
        yield f"{exists}; put the model there (`inferd engine install` makes the demo model)"
        return
    try:
        if not (folder / "config.json").is_file():
            yield "incomplete: config.json is missing; copy the whole model folder"
        if not any(True for pattern in _TOKENIZERS for _ in folder.glob(pattern)):
            yield "incomplete: it holds no tokenizer (tokenizer.json); copy the whole model folder"
        names = _weight_files(folder)
        missing = [name for name in names if not (folder / name).is_file()]
        if not names:
            yield "incomplete: it holds no *.safetensors; copy or convert the model's weights"
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            yield f"incomplete: {missing[0]}{more} of {_INDEX} missing; copy them again"
        for name in names:
            if name not in missing:
                _look_through(folder / name)
    except _WrongFile as wrong:
        yield str(wrong)
    except OSError as error:
        yield f"cannot be read ({error.strerror or error}); check its permissions"


def _weight_files(folder: Path) -> list[str]:
    index = folder / _INDEX
    if not index.is_file():
        return sorted(file.name for file in folder.glob("*.safetensors"))
    shards = _object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _WrongFile(f"{_INDEX} has no weight_map; copy it again")
    return sorted(set(shards.values()))


def _look_through(file: Path) -> None:
    """A safetensors file says in its header how long it is."""
    size = file.stat().st_size
    cut_short = _WrongFile(f"{file.name} is cut short or damaged; copy it again")
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size  # noqa: PLR2004
        if length > min(size - 8, JSON_BYTES_MAX):
            raise cut_short
        try:
            header = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            raise cut_short from None
    if size != 8 + length + max(ends, default=0):
        raise cut_short


def _object(file: Path) -> dict[str, Any]:
    if file.stat().st_size > JSON_BYTES_MAX:
        raise _WrongFile(f"{file.name} is larger than {JSON_BYTES_MAX:,} bytes")
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _WrongFile(f"{file.name} is not a JSON object; copy it again")
    return content


def _config_problems(folder: Path, model: Model, version: Version) -> Iterator[str]:
    """What the engine would refuse: a context longer than the model was made for."""
    try:
        config = _object(folder / "config.json")
    except _WrongFile as wrong:
        yield str(wrong)
        return
    positions = _positions(config)
    allowed = _LONGER_CONTEXT in version.engine.env
    if positions and model.context_tokens_max > positions and not allowed:
        yield (
            f"reads at most {positions:,} tokens, less than context_tokens_max,"
            f" {model.context_tokens_max:,}"
        )


def _positions(config: dict[str, Any]) -> int | None:
    """The longest context by config.json, its rope scaling at most included; None: not told."""
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    return int(positions * max(1, factor)) if isinstance(factor, int | float) else positions
