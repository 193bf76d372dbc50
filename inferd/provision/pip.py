"""How inferd uses pip: its arguments and environment, what its output means, why it failed.

The user's own pip configuration (indexes, proxies, certificates) holds; what would make pip
install elsewhere or ask questions does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from inferd.provision.programs import Program

RETRIES: Final = 2

_OWN_SETTINGS: Final = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PYTHONUNBUFFERED": "1",
}
_UNWANTED: Final = frozenset(
    {
        "PIP_PREFIX",
        "PIP_REQUIRE_HASHES",
        "PIP_ROOT",
        "PIP_TARGET",
        "PIP_USER",
        "PYTHONHOME",
        "PYTHONPATH",
    }
)

# pip names the failed package last, the cause before it: the first match explains. What happened
# and what to do are two sentences.
_CAUSES: Final = {
    r"No space left on device|Disk quota exceeded": "the disk is full. Free some space",
    r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerificationError": (
        "the package index's certificate is not trusted here. Name your own authority with "
        "PIP_CERT=/path/to/ca.pem"
    ),
    r"ProxyError|Tunnel connection failed|407 Proxy": "the proxy refused. Correct HTTPS_PROXY",
    r"(NewConnection|NameResolution|ConnectTimeout|ReadTimeout|ConnectionReset)Error"
    r"|Temporary failure in name resolution|Failed to establish a new connection"
    r"|Network is unreachable|Connection refused|Read timed out"
    r"|RemoteDisconnected|IncompleteRead|ConnectionBroken": (
        "pip cannot reach a package index. Connect this machine, or point pip at an index that "
        "it reaches (PIP_INDEX_URL)"
    ),
    r"40[13] (Client Error|Unauthorized|Forbidden)": (
        "the package index refuses access. Give pip its credentials (PIP_INDEX_URL)"
    ),
    r"No matching distribution found for (?P<what>\S+)": (
        "no index that pip uses offers {what} for this Python and system (glibc 2.34 or newer is "
        "needed). Add one that does with PIP_EXTRA_INDEX_URL"
    ),
    r"DO NOT MATCH THE HASHES": (
        "a download arrived altered. Clear what was kept of it with `pip cache purge`"
    ),
    r"Permission denied|Read-only file system": (
        "files cannot be written there. Choose another place with --directory"
    ),
}


def program(
    name: str,
    python: Path,
    arguments: Sequence[str],
    *,
    log: Path,
    temporary: Path,
    inherited: Mapping[str, str] | None = None,
) -> Program:
    """`pip ARGUMENTS` in `python`'s environment, with `temporary` for what it unpacks."""
    return Program(
        name=name,
        arguments=[str(python), "-I", "-m", "pip", "--retries", str(RETRIES), *arguments],
        env=environment(os.environ if inherited is None else inherited, temporary),
        log=log,
        noise=is_noise,
    )


def environment(inherited: Mapping[str, str], temporary: Path) -> dict[str, str]:
    kept = {name: value for name, value in inherited.items() if name not in _UNWANTED}
    return {**kept, **_OWN_SETTINGS, "TMPDIR": str(temporary)}


def progress_bar(version: str) -> str:
    """The option that makes pip `version` count its downloads in lines, or at least keep quiet."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return "--progress-bar=raw" if numbers >= [24, 1] else "--progress-bar=off"


def install_arguments(packages: Sequence[str], *, closed: bool) -> list[str]:
    """`closed`: exactly these packages, and nothing that they declare.

    Bytecode is left to the first import: compiling all 18,500 modules costs three times what
    the 6,500 do that an engine imports.
    """
    return [
        "install",
        "--no-compile",
        *(["--no-deps"] if closed else []),
        *packages,
    ]


def is_noise(line: str) -> bool:
    """Progress counts, and what pip says of folders that another index has."""
    return line.startswith(("Progress ", "WARNING: Location "))


def activity(line: str, before: str = "") -> str | None:
    """What pip does now, in a few words; None when `line` does not tell.

    `before` is what it did until now: a count of bytes belongs to the package named there.
    """
    if match := re.match(r"(?:Collecting|Processing) (?:\S*/)?([A-Za-z0-9._-]+)", line):
        return _package(match[1])
    if match := re.match(r"\s*(?:Downloading|Using cached) (?:\S*/)?([^\s]+)(?: \((.+)\))?", line):
        size = f" ({match[2]})" if match[2] else ""
        return _package(match[1]) + size
    if match := re.match(r"Progress (\d+) of (\d+)", line):
        done, total = int(match[1]), int(match[2])
        package = before.partition(" ")[0]
        return f"{package} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB".strip() if total else None
    if line.startswith("Installing collected packages:"):
        count = line.count(",") + 1
        return f"unpacking {count} package{'s' if count > 1 else ''}"
    return None


def _package(file: str) -> str:
    """The package of a file name or of a requirement."""
    return re.split(r"-\d|==|[<>=!~;\[]", file, maxsplit=1)[0].replace("_", "-")


def cause(output: str) -> str | None:
    """Why pip failed and what to do, from its output; None when that is not known."""
    for pattern, text in _CAUSES.items():
        if match := re.search(pattern, output):
            return text.format(**match.groupdict())
    return None
