"""The systemd unit that is shipped: inferd alone is signalled, and has the time that it needs."""

from __future__ import annotations

import asyncio
import shutil
from configparser import ConfigParser, SectionProxy
from pathlib import Path

import pytest

from inferd.config.schema import Server
from inferd.workers.engine import STOP_GRACE_S
from inferd.workers.process import KILL_S_MAX, ORPHANS_S_MAX
from tests.fakes.engines import REPOSITORY

UNIT = REPOSITORY / "deploy" / "inferd.service"


def service() -> SectionProxy:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.read(UNIT)
    return parser["Service"]


def test_engines_outlive_the_service() -> None:
    unit = service()
    assert unit["KillMode"] == "process"
    assert unit["KillSignal"] == "SIGTERM"
    assert unit["OOMPolicy"] == "continue"
    assert unit["Restart"] == "always"
    assert unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "serve" in unit["ExecStart"].split()


def test_an_orderly_end_has_the_time_it_needs() -> None:
    defaults = Server()
    needed_s = defaults.unready_s + defaults.shutdown_grace_s
    needed_s += STOP_GRACE_S + ORPHANS_S_MAX + KILL_S_MAX
    assert float(service()["TimeoutStopSec"]) > needed_s


@pytest.mark.real_time
async def test_systemd_understands_it(tmp_path: Path) -> None:
    """Where there is a systemd; what the unit must say is tested above in any case."""
    if (program := shutil.which("systemd-analyze")) is None:
        return
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/inferd/bin/inferd", "/bin/true"))
    process = await asyncio.create_subprocess_exec(
        program,
        "verify",
        unit,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert (process.returncode, out.decode()) == (0, "")
