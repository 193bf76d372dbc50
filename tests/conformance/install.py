"""Makes a suite's environment from its lock, once for each version of the lock."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import orjson

from inferd.api import openapi
from inferd.provision.environment import EngineEnvironment
from tests.conformance.suites import LOCKS, PROBES, PYTHON, Packages, Suite
from tests.fakes.engines import ENGINE_ENVIRONMENT

INSTALL_S_MAX = 900
MARK = "installed"
ALLOWED_STATUSES = [400, 401, 403, 404, 408, 413, 429]


class CannotInstall(Exception):
    """What is missing, or what the installer said."""


def install(suite: Suite, folder: Path) -> None:
    """Packages once; our own files each time.

    Raises:
        CannotInstall: a tool is missing, or the installer failed.
    """
    pins = lock_text(suite)
    mark = folder / MARK
    if not mark.exists() or mark.read_text(encoding="utf-8") != pins:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        match suite.packages:
            case Packages.PIP:
                _pip(suite, folder)
            case Packages.NPM:
                _npm(suite, folder)
            case Packages.ENGINE:
                _engine(folder)
        mark.write_text(pins, encoding="utf-8")
    for probe in PROBES.iterdir():
        if probe.is_file():
            shutil.copy(probe, folder / probe.name)


def lock_text(suite: Suite) -> str:
    """All that the suite's environment is made of."""
    match suite.packages:
        case Packages.PIP:
            locks = [LOCKS / f"{suite.name}.txt"]
            locks += [LOCKS / f"{suite.name}.source.txt"] if suite.source else []
        case Packages.NPM:
            locks = [LOCKS / suite.name / "package-lock.json"]
        case _:
            locks = []
    return "".join(lock.read_text(encoding="utf-8") for lock in locks)


def version(suite: Suite, package: str) -> str:
    """The version that the lock pins."""
    if suite.packages is Packages.ENGINE:
        installed = EngineEnvironment(ENGINE_ENVIRONMENT).installed()
        return installed.versions[package] if installed else "missing"
    if suite.packages is Packages.NPM:
        locked = json.loads(lock_text(suite))["packages"][f"node_modules/{package}"]["version"]
        assert isinstance(locked, str)
        return locked
    (pinned,) = set(re.findall(rf"^{re.escape(package)}==(\S+)", lock_text(suite), re.MULTILINE))
    assert isinstance(pinned, str)
    return pinned


def _run(*command: str | Path, folder: Path) -> None:
    try:
        subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_S_MAX,
        )
    except FileNotFoundError:
        raise CannotInstall(f"it needs {command[0]}, which is not on this machine") from None
    except subprocess.CalledProcessError as error:
        raise CannotInstall(f"{command[0]} failed: {error.stderr.strip()[-1_000:]}") from error
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"not done after {INSTALL_S_MAX} s") from None


def _pip(suite: Suite, folder: Path) -> None:
    _run(sys.executable, "-m", "venv", folder, folder=folder)
    pip = (folder / PYTHON, "-m", "pip", "--disable-pip-version-check", "-q")
    locked = ("--require-hashes", "-r")
    _run(*pip, "install", *locked, LOCKS / f"{suite.name}.txt", folder=folder)
    if suite.source is not None:
        lock = LOCKS / f"{suite.name}.source.txt"
        source = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
        _run(*pip, "download", *source, *locked, lock, folder=folder)
        (archive,) = folder.glob("*.tar.gz")
        _run("tar", "xf", archive, folder=folder)
        (unpacked,) = folder.glob(f"{suite.source}-*/")
        unpacked.rename(folder / "source")


def _npm(suite: Suite, folder: Path) -> None:
    for file in (LOCKS / suite.name).iterdir():
        shutil.copy(file, folder / file.name)
    _run("npm", "ci", "--silent", "--no-audit", "--no-fund", folder=folder)


def _engine(folder: Path) -> None:
    """The engine's Python, under the name that a suite's own has."""
    environment = EngineEnvironment(ENGINE_ENVIRONMENT)
    if problems := environment.problems():
        raise CannotInstall(f"it needs the engine, run `inferd engine install`: {problems}")
    (folder / "bin").mkdir()
    (folder / PYTHON).write_text(f'#!/bin/sh\nexec "{environment.python}" "$@"\n', "utf-8")
    (folder / PYTHON).chmod(0o755)


def write_key(folder: Path, key: str) -> None:
    """The SDK's tests have a key written into them."""
    conftest = folder / "source" / "tests" / "conftest.py"
    lines = conftest.read_text(encoding="utf-8").splitlines()
    lines = [f'api_key = "{key}"' if one.startswith("api_key = ") else one for one in lines]
    conftest.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_schemathesis_files(folder: Path, model: str, embedding_model: str) -> None:
    """The published document with the models that are there, so that cases get past the 404."""
    document = openapi.document()
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        if name.endswith("Request") and "model" in schema.get("properties", {}):
            chosen = embedding_model if name == "EmbeddingsRequest" else model
            schema["properties"]["model"] = {"enum": [chosen]}
    parameters = document["paths"]["/v1/models/{model}"]["parameters"]
    parameters[0]["schema"] = {"enum": [model, "no-such-model"]}
    (folder / "document.json").write_bytes(orjson.dumps(document))
    statuses = json.dumps([str(status) for status in ALLOWED_STATUSES])
    config = f"[checks.negative_data_rejection]\nexpected-statuses = {statuses}\n"
    (folder / "schemathesis.toml").write_text(config, encoding="utf-8")
