"""A model's folder: whether it is complete, and whether it is still what it was.

`manifest.json` lists every file's size and sha256 in a fixed form, so that the sha256 of the
manifest itself, the folder's checksum, stands for all of it. Hashing costs 0.7 s a GB.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferd.errors import ProvisionError

MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class File:
    """One line of a manifest."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a folder but the manifest, by name."""

    files: tuple[File, ...]

    def text(self) -> str:
        """The one form that a manifest has on disk."""
        files = {
            file.name: {"bytes": file.size_bytes, "sha256": file.sha256}
            for file in sorted(self.files, key=lambda file: file.name)
        }
        return json.dumps({"format": _FORMAT, "files": files}, indent=2) + "\n"

    @property
    def checksum(self) -> str:
        """What `checksum` of a version in inferd.toml is compared with."""
        return f"sha256:{hashlib.sha256(self.text().encode()).hexdigest()}"


def parse(text: str) -> Manifest:
    """The manifest in `text`; ValueError when it is not one."""
    try:
        document: dict[str, Any] = json.loads(text)
        version = document["format"]
        files = tuple(
            File(name, int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in document["files"].items()
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a manifest: {error}") from error
    if version != _FORMAT:
        raise ValueError(f"not a manifest of format {_FORMAT}, but {version}")
    return Manifest(files)


def measure(folder: Path) -> Manifest:
    """Hashes every file of `folder`."""
    return Manifest(
        tuple(
            File(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of(path))
            for path in _files(folder)
        )
    )


def write_manifest(folder: Path) -> Manifest:
    """Measures `folder` and leaves the result in it. ProvisionError when it is incomplete."""
    if missing := list(missing_parts(folder)):
        raise ProvisionError(f"{folder} is no complete model folder: {'; '.join(missing)}")
    manifest = measure(folder)
    unfinished = folder / f".{MANIFEST}"
    unfinished.write_text(manifest.text(), encoding="utf-8")
    unfinished.replace(folder / MANIFEST)
    return manifest


def problems(folder: Path, checksum: str | None = None) -> list[str]:
    """What keeps `folder` from being served, one line each; empty when nothing does.

    With `checksum` (the manifest's), every file is hashed and held against the manifest.
    """
    if not folder.is_dir():
        return [f"{folder} does not exist"]
    if missing := [f"{folder}: {part}" for part in missing_parts(folder)]:
        return missing
    return [] if checksum is None else [f"{folder}: {line}" for line in _changes(folder, checksum)]


def missing_parts(folder: Path) -> Iterator[str]:
    """The parts every model folder needs: config, tokenizer, all of its weights."""
    for name in (_CONFIG, _INDEX):
        path = folder / name
        if path.exists() and not _is_json_object(path):
            yield f"{name} is not readable JSON"
    if not (folder / _CONFIG).exists():
        yield f"{_CONFIG} is missing"
    if not any(_has_content(folder / name) for name in _TOKENIZERS):
        yield f"the tokenizer is missing ({' or '.join(_TOKENIZERS)})"
    weights = _weight_files(folder)
    if not weights:
        yield "the weights are missing (*.safetensors)"
    for name in weights:
        if not _has_content(folder / name):
            yield f"{name} is missing or empty"


def _weight_files(folder: Path) -> list[str]:
    index = folder / _INDEX
    if index.exists() and _is_json_object(index):
        parts = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
        return sorted({str(part) for part in parts.values()}) if isinstance(parts, dict) else []
    return sorted(path.name for path in folder.glob("*.safetensors"))


def _changes(folder: Path, checksum: str) -> Iterator[str]:
    try:
        manifest = parse((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        yield f"{MANIFEST} is missing: make it with `inferd engine manifest {folder}`"
        return
    except (OSError, ValueError) as error:
        yield f"{MANIFEST} is unreadable ({error})"
        return
    if manifest.checksum != checksum:
        yield f"{MANIFEST} has the checksum {manifest.checksum} instead of {checksum}"
        return
    yield from changes(folder, manifest)


def changes(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Each file of `manifest` that `folder` does not have, or has with other contents."""
    for file in manifest.files:
        path = folder / file.name
        try:
            size = path.stat().st_size
        except OSError:
            yield f"{file.name} is missing"
            continue
        if size != file.size_bytes:
            yield f"{file.name} has {size:,} bytes instead of {file.size_bytes:,}"
        elif sha256_of(path) != file.sha256:
            yield f"{file.name} has other contents than recorded"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    """Every file that is part of the model: hidden ones and the manifest are not."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.relative_to(folder).as_posix() != MANIFEST
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _is_json_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False
