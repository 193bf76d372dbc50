"""The repository stands alone: locked by hashes, without a word of where it was made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.house import repository

# Written so that this file does not contain what it looks for.
FOREIGN = {
    "a package registry's host": r"\b(pypi|npmjs|debian|pythonhosted)\.(org|com)\b",
    "a path outside of the repository": r"\.\./shared\b|/wor[k]/",
    "an address to take packages from": r"--(extra-)?index-url[= ]+https?:|--find-link[s]\b",
}

LOCKS = ("requirements/gateway.txt", "requirements/dev.txt")
SCRIPTS = (
    "scripts/bench",
    "scripts/check",
    "scripts/conformance",
    "scripts/lock",
    "scripts/packages",
    "scripts/serve",
    "scripts/soak",
    "scripts/test",
    ".ci/run",
)


def foreign_words(text: str) -> list[str]:
    return [
        f"{number}: {what}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FOREIGN.items()
        if (found := re.search(pattern, line))
    ]


def test_no_file_names_what_is_outside() -> None:
    found = []
    for path in repository.files():
        try:
            text = repository.read(path)
        except UnicodeDecodeError:
            continue
        found += [f"{path}:{complaint}" for complaint in foreign_words(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "see https://py" + "pi.org/simple",
        "files.python" + "hosted.org",
        "../" + "shared/plan.md",
        "cd /" + "work/main",
        "--index" + "-url https://x",
    ],
)
def test_foreign_words_are_found(line: str) -> None:
    assert foreign_words(f"fine\n{line}\n")


def test_words_that_only_look_foreign_are_not() -> None:
    assert foreign_words("shared/ work/ network/working ../sharedly pypi\n") == []


PIN = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)"
    r"(?: ; [^-]+)?"  # an environment marker
    r"(?:\s+--hash=sha256:[0-9a-f]{64})+"
)


def pins(lock: str) -> dict[str, str]:
    """Name -> version. Raises AssertionError for a line that is anything but a hashed pin."""
    found = {}
    for entry in re.sub(r"\\\n", " ", lock).splitlines():
        line = entry.partition("#")[0].strip()
        if not line:
            continue
        match = PIN.fullmatch(line)
        assert match, f"not a pin with hashes: {line[:100]}"
        found[match["name"]] = match["version"]
    return found


def project() -> dict[str, Any]:
    return tomllib.loads(repository.read("pyproject.toml"))


def test_locks_are_pins_with_hashes() -> None:
    gateway, dev = (pins(repository.read(lock)) for lock in LOCKS)
    assert gateway.items() <= dev.items(), "the development lock holds all of the gateway's pins"


def test_locks_of_client_suites_are_pins_with_hashes() -> None:
    found = 0
    for path in repository.files():
        if path.startswith("tests/conformance/locks/") and path.endswith(".txt"):
            assert pins(repository.read(path)), path
            found += 1
        elif path.endswith("/package-lock.json"):
            packages = json.loads(repository.read(path))["packages"]
            for name, package in packages.items():
                assert not name or package["integrity"].startswith("sha512-"), f"{path}: {name}"
                assert "resolved" not in package, f"{path}: {name} names a registry"
            found += 1
    assert found > 10


def test_locks_satisfy_the_project() -> None:
    gateway, dev = (pins(repository.read(lock)) for lock in LOCKS)
    told = project()
    extras = told["project"]["optional-dependencies"]
    for lock, wanted in (
        (gateway, [*told["project"]["dependencies"], *told["build-system"]["requires"]]),
        (gateway, extras["build"]),
        (dev, extras["dev"]),
    ):
        for requirement in map(Requirement, wanted):
            pinned = lock.get(requirement.name)
            assert pinned is not None, f"{requirement} is not locked: run scripts/lock"
            assert requirement.specifier.contains(pinned), f"{requirement} but {pinned} is locked"


@pytest.mark.parametrize(
    "lock",
    [
        "orjson==3.13.0\n",
        "orjson>=3.13 \\\n    --hash=sha256:" + "0" * 64 + "\n",
        "orjson==3.13.0 \\\n    --hash=md5:00\n",
        "-f somewhere\n",
        "orjson @ git+ssh://somewhere\n",
    ],
)
def test_a_pin_without_hash_is_found(lock: str) -> None:
    with pytest.raises(AssertionError, match="not a pin with hashes"):
        pins(lock)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_stop_at_the_first_error(script: str) -> None:
    assert os.access(repository.ROOT / script, os.X_OK), f"{script} cannot be executed"
    assert "\nset -euo pipefail\n" in repository.read(script)
    subprocess.run(["bash", "-n", repository.ROOT / script], check=True)


def test_every_script_is_known_here() -> None:
    scripts = {path for path in repository.files() if path.startswith("scripts/")}
    plain = {path for path in scripts if path.count("/") == 1}
    assert plain - {"scripts/environment.sh"} <= set(SCRIPTS)


def test_every_benchmark_is_run_and_documented() -> None:
    run = repository.read("scripts/bench")
    documented = repository.read("docs/performance.md")
    for path in repository.python_files():
        if path.startswith("scripts/benchmarks/"):
            name = Path(path).relative_to("scripts/benchmarks").parts[0].removesuffix(".py")
            assert re.search(rf"^names=\(.*\b{name}\b.*\)$", run, re.MULTILINE), name
            assert f"scripts/bench {name}" in documented, name


def test_every_soak_is_run_and_documented() -> None:
    run = re.search(r"^names=\((.*)\)$", repository.read("scripts/soak"), re.MULTILINE)
    assert run is not None
    for name in run[1].split():
        assert (repository.ROOT / "scripts" / "soaks" / f"{name}.py").exists(), name
        assert f"`scripts/soak {name}" in repository.read("docs/testing.md"), name


@pytest.fixture
def bare_clone(tmp_path: Path) -> Path:
    """The part of the repository that makes the environment, in a place of its own."""
    for folder in ("scripts", "requirements"):
        shutil.copytree(repository.ROOT / folder, tmp_path / folder)
    (tmp_path / "inferd").mkdir()
    for path in ("pyproject.toml", "inferd/__init__.py"):
        shutil.copy(repository.ROOT / path, tmp_path / path)
    return tmp_path


def ensure_environment(
    clone: Path, lock: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; source {clone}/scripts/environment.sh; {lock}"],
        env={**os.environ, **variables},
        cwd="/",
        check=False,
        capture_output=True,
        text=True,
    )


def test_an_old_python_is_refused_with_the_next_step(bare_clone: Path) -> None:
    old = bare_clone / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    finished = ensure_environment(bare_clone, "ensure_environment gateway", PYTHON=str(old))
    assert finished.returncode == 1
    assert "needs Python 3.11 or newer" in finished.stderr
    assert "PYTHON=" in finished.stderr
    assert not (bare_clone / ".venv").exists()


def test_an_installed_environment_is_used_as_it_is(bare_clone: Path) -> None:
    inferd = bare_clone / ".venv/bin/inferd"
    inferd.parent.mkdir(parents=True)
    inferd.write_text("#!/bin/sh\n")
    inferd.chmod(0o755)
    recorded = ensure_environment(bare_clone, "record_of dev").stdout
    (bare_clone / ".venv/installed").write_text(recorded)
    for lock in ("dev", "gateway"):
        finished = ensure_environment(bare_clone, f"ensure_environment {lock} && pwd", PYTHON="no")
        assert (finished.returncode, finished.stdout) == (0, f"{bare_clone}\n")

    (bare_clone / "requirements/dev.txt").write_text("another lock\n")
    finished = ensure_environment(bare_clone, "ensure_environment dev", PYTHON="no")
    assert finished.returncode == 1, "a changed lock is installed again"
