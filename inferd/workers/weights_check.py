"""Whether a model folder can be served, asked before minutes are spent on loading it.

A checksum means hashing every file (0.7 s a GB): done file by file in a thread, so that the loop
goes on and a worker that is let go meanwhile does not wait. Owns what has been hashed: a restart
does not pay again while the files look the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from inferd.errors import ProvisionError
from inferd.provision import model_folder
from inferd.provision.model_folder import Manifest

Signature = tuple[tuple[str, int, int], ...]


class WeightsCheck:
    """Remembers one signature for each folder and checksum of the configuration."""

    def __init__(self) -> None:
        self._verified: dict[tuple[Path, str], Signature] = {}

    async def check(
        self, folder: Path, checksum: str | None, over: Callable[[], bool] = lambda: False
    ) -> None:
        """Return if the folder is complete and as its checksum says, or early when it is `over`.

        Raises:
            ProvisionError: it is not; every problem is named.
            OSError: it cannot be read.
        """
        if found := model_folder.problems(folder):
            raise ProvisionError(_told(found))
        if checksum is None:
            return
        manifest = _manifest(folder, checksum)
        if manifest is None:  # missing or of another checksum: told without hashing anything
            raise ProvisionError(_told(model_folder.problems(folder, checksum)))
        signature = _signature(folder, manifest)
        if self._verified.get((folder, checksum)) == signature:
            return
        changes: list[str] = []
        for file in manifest.files:
            if over():
                return
            changes += await asyncio.to_thread(_changes, folder, Manifest((file,)))
        if changes:
            raise ProvisionError(_told([f"{folder}: {change}" for change in changes]))
        self._verified[folder, checksum] = signature


def _changes(folder: Path, manifest: Manifest) -> list[str]:
    return list(model_folder.changes(folder, manifest))


def _told(problems: list[str]) -> str:
    return "; ".join(problems) + ": copy the model folder again, or correct `weights`"


def _manifest(folder: Path, checksum: str) -> Manifest | None:
    try:
        manifest = model_folder.parse((folder / model_folder.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if manifest.checksum == checksum else None


def _signature(folder: Path, manifest: Manifest) -> Signature:
    """What changes when somebody writes to a file; a missing one differs from any."""
    looks: list[tuple[str, int, int]] = []
    for file in manifest.files:
        try:
            status = (folder / file.name).stat()
        except OSError:
            looks.append((file.name, -1, -1))
        else:
            looks.append((file.name, status.st_size, status.st_mtime_ns))
    return tuple(looks)
