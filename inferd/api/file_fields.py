"""What a client may say of a file: its name, its purpose, how long it lives. Pure.

A name is only ever shown. It is refused where showing it could do harm, and cut to its last part,
as browsers do; nothing of it reaches a path.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, get_args

from inferd.api.fields import (
    Rule,
    as_object,
    integer,
    missing,
    not_supported_value,
    one_of,
    only_keys,
    string,
    text,
)
from inferd.batch.first_line import FirstLine
from inferd.config.files import Kept
from inferd.errors import InvalidBody, InvalidField
from inferd.storage.files import FileRow

FILENAME_CHARS_MAX: Final = 255
LIFE_S_MIN: Final = 3_600
LIFE_S_MAX: Final = 2_592_000
NOT_A_BATCH: Final = "Invalid file format for Batch API. Must be .jsonl"
BATCH: Final = "batch"
BATCH_OUTPUT: Final = "batch_output"
KEPT: Final = get_args(Kept)
"""Purposes of files that are only kept and given back, where `files.purposes` names them."""
UPLOADED: Final = (BATCH, *KEPT)
PURPOSES: Final = (BATCH, BATCH_OUTPUT, *KEPT)
"""Purposes of files that are there; a client makes files of all but the second."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ANCHOR: Final = "created_at"
_name: Final = text(4_096)
_seconds: Final = integer(LIFE_S_MIN, LIFE_S_MAX)
_anchor: Final = one_of(_ANCHOR)


def _filename(value: object, path: str) -> str:
    given = _name(value, path)
    if _CONTROL.search(given):
        raise InvalidField(
            f"Invalid '{path}': a file's name cannot hold control characters.", param=path
        )
    return text(FILENAME_CHARS_MAX)(re.split(r"[/\\]", given)[-1].strip(), path)


def _life_s(value: object, path: str) -> int:
    given = as_object(value, path)
    only_keys(given, path, frozenset({"anchor", "seconds"}))
    for key in ("anchor", "seconds"):
        if given.get(key) is None:
            raise missing(f"{path}.{key}")
    _anchor(given["anchor"], f"{path}.anchor")
    return _seconds(given["seconds"], f"{path}.seconds")


filename: Final = Rule(
    _filename, {"type": "string", "minLength": 1, "maxLength": FILENAME_CHARS_MAX}
)
purpose: Final = Rule(string(64), {"type": "string", "enum": list(UPLOADED)})
"""A word: `check_taken` says whether it is taken here."""
life_s: Final = Rule(
    _life_s,
    {
        "type": "object",
        "properties": {"anchor": {"const": _ANCHOR}, "seconds": dict(_seconds.schema)},
        "required": ["anchor", "seconds"],
        "additionalProperties": False,
    },
)
mime_type: Final = string(255)


def check_taken(given: str, kept: Collection[str]) -> None:
    """Files for `given` are taken here. Raises InvalidField, naming those that are."""
    if given != BATCH and given not in kept:
        raise not_supported_value("purpose", given, (BATCH, *kept))


def check_extension(name: str) -> None:
    """Raises InvalidBody in the public API's words."""
    if not name.lower().endswith(".jsonl"):
        raise InvalidBody(f"{NOT_A_BATCH}, and its name must say so.", param="file")


def check_first_line(first: FirstLine) -> None:
    """Raises InvalidBody in the public API's words."""
    if first.refused is not None:
        raise InvalidBody(f"{NOT_A_BATCH}. {first.refused}", param="file")


def file_body(file: FileRow) -> dict[str, Any]:
    """A file as clients see it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_us // 1_000_000,
        "expires_at": None if file.expires_us is None else file.expires_us // 1_000_000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
