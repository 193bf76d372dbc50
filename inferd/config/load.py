"""inferd.toml -> LoadedConfig: read, parse, validate, check; every error at once, with its line.

The one place that looks anything up in the environment: whether the variables that `key_env`
names are set. Model folders are looked at by `provision.check_files`, not here.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from inferd.config.checks import check
from inferd.config.explain import explain, without_mistakes
from inferd.config.locate import KeyPath, Locations
from inferd.config.problems import Problem, render
from inferd.config.schema import Config
from inferd.errors import ConfigError

FILE_BYTES_MAX: Final = 4_194_304
"""More than ten thousand teams need; a wrong file is refused before it is parsed."""

_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration that is right in itself, and where it came from."""

    config: Config
    path: Path
    root: Path
    """The file's folder: what relative paths in the file start from."""
    name: str = "inferd.toml"
    """The file as it was given, for messages."""
    locations: Locations = field(default_factory=lambda: Locations(""), repr=False, compare=False)

    def resolve(self, relative: str) -> Path:
        """A path of the file; absolute ones stay as they are."""
        return self.root / relative


def load_config(path: Path, environ: Mapping[str, str] | None = None) -> LoadedConfig:
    """Read one file. Raises ConfigError with all its problems.

    `environ` is where `key_env` is looked up: the process's own unless given.
    """
    return parse_config(path, _read(path), environ)


def parse_config(path: Path, text: str, environ: Mapping[str, str] | None = None) -> LoadedConfig:
    """`load_config` of a text that is, or will be, at `path`."""
    data, locations = _parse(path, text)
    problems: list[Problem] = []
    config: Config | None = None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        problems = explain(mistakes)
        remaining = without_mistakes(data, mistakes)
        config = None if remaining is None else _validated(remaining)
    if config is not None:
        found = check(config, os.environ if environ is None else environ)
        mistaken = [problem.path for problem in problems]
        problems += [new for new in found if not _may_follow(new, mistaken)]
    if problems or config is None:
        raise ConfigError(render(problems, str(path), locations))
    absolute = path.absolute()
    return LoadedConfig(config, absolute, absolute.parent, str(path), locations)


def _validated(data: dict[str, Any]) -> Config | None:
    try:
        return Config.model_validate(data)
    except ValidationError:
        return None


def _may_follow(problem: Problem, mistaken: list[KeyPath]) -> bool:
    unless = problem.unless
    return unless is not None and any(path[: len(unless)] == unless for path in mistaken)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            [f"{path}: no such file; `inferd init --config {path}` writes one"]
        ) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: is a folder; give the file, {path / 'inferd.toml'}"]) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([f"{path}: cannot be read ({reason}); check its permissions"]) from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError([f"{path}: larger than {FILE_BYTES_MAX:,} bytes; is it the right file?"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start]
        raise ConfigError(
            [f"{path}:{line}: not UTF-8 (byte 0x{byte:02x}); save it as UTF-8"]
        ) from None


def _parse(path: Path, text: str) -> tuple[dict[str, Any], Locations]:
    """The tables, arrays as tuples, and where everything is."""
    try:
        data = {key: _frozen(value) for key, value in tomllib.loads(text).items()}
        return data, Locations(text)
    except RecursionError:
        raise ConfigError([f"{path}: arrays or tables are nested too deeply"]) from None
    except ValueError as error:  # tomllib's own error, and integers too long for int()
        message = str(error)
        place = _PLACE.search(message)
        line, column = place.groups() if place else (None, None)
        where = f", at column {column}" if column else ", at the end of the file" if place else ""
        line = line or str(max(1, len(text.splitlines())) if place else 1)
        what = _PLACE.sub("", message)
        raise ConfigError([f"{path}:{line}: not valid TOML: {what}{where}"]) from None


def _frozen(value: Any) -> Any:  # noqa: ANN401 (any value of a TOML file)
    """Arrays become tuples, which the strict, frozen models want."""
    if isinstance(value, list):
        return tuple(_frozen(entry) for entry in value)
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return value
