"""`import_watcher.py FOLDER MODULE...`: imports modules, prints what that did, as JSON.

An audit hook cannot be taken off again, so this runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

EFFECTS = (
    "http.client.",
    "os.chdir",
    "os.chmod",
    "os.exec",
    "os.fork",
    "os.kill",
    "os.link",
    "os.mkdir",
    "os.posix_spawn",
    "os.putenv",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.system",
    "os.truncate",
    "os.unsetenv",
    "shutil.",
    "socket.",
    "sqlite3.connect",
    "subprocess.",
    "tempfile.",
    "urllib.",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main(folder: str, modules: list[str]) -> None:
    seen: list[str] = []
    importing = ""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and arguments[2] & WRITING
        if importing and (writes or event.startswith(EFFECTS)):
            seen.append(f"{importing}: {event} {arguments!r}")

    sys.path.insert(0, folder)
    sys.addaudithook(watch)
    for name in modules:
        before = globals_of_python()
        importing = name
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            seen.append(f"{name}: {error!r}")
        importing = ""
        after = globals_of_python()
        seen += [
            f"{name}: {what} changed to {value}"
            for what, value in after.items()
            if value != before[what]
        ]
    sys.stdout.write(json.dumps(seen))


def globals_of_python() -> dict[str, str]:
    return {
        "event loop policy": str(asyncio.get_event_loop_policy()),
        "log handlers": str(logging.getLogger().handlers),
        "signal handlers": str([signal.getsignal(number) for number in signal.valid_signals()]),
        "threads": str(threading.enumerate()),
        "working folder": os.getcwd(),  # noqa: PTH109 - as text
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
