"""Importing any module of inferd does nothing: no file, socket, process, thread, no global."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.house import import_watcher, repository


def effects_of_importing(folder: Path, modules: list[str]) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-B", "-P", import_watcher.__file__, str(folder), *modules],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    found: list[str] = json.loads(finished.stdout)
    return found


def test_importing_inferd_has_no_effect() -> None:
    modules = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in repository.python_files()
        # Shims belong to the engine's environment: python itself loads them there.
        if path.startswith("inferd/") and not path.startswith("inferd/provision/shims/")
    ]
    found = effects_of_importing(repository.ROOT, modules)
    assert not found, "\n".join(found)


def test_effects_are_seen(tmp_path: Path) -> None:
    sources = {
        "changes": "import os\nos.environ['X_SET'] = '1'",
        "connects": "import socket\nsocket.socket().close()",
        "fails": "import no_such_module",
        "logs": "import logging\nlogging.basicConfig()",
        "signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "spawns": "import subprocess\nsubprocess.run(['true'])",
        "threads": (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
        ),
        "writes": f"open({str(tmp_path / 'file')!r}, 'a').close()",
        "reads": f"open({__file__!r}).close()",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    found = effects_of_importing(tmp_path, list(sources))
    culprits = {line.partition(":")[0] for line in found}
    assert culprits == set(sources) - {"reads"}, "\n".join(found)
