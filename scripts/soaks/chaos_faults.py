"""What goes wrong, at random: to workers, to their processes, to the configuration, to inferd."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from inferd.clock import monotonic
from scripts.soaks.chaos_node import ChaosNode
from tests.fakes.served import session_of


@dataclass(slots=True)
class Struck:
    """One fault that happened. `at` is loop time."""

    at: float
    fault: str
    what: str


@dataclass
class Faults:
    """Chosen by weight, one after another."""

    node: ChaosNode
    chance: random.Random
    every_s: float
    kills_inferd: bool
    first: str = ""
    """The fault to begin with; any unless given."""
    struck: list[Struck] = field(default_factory=list)
    left_behind: list[int] = field(default_factory=list)
    """Leaders that a new inferd neither took over nor ended."""

    async def run(self) -> None:
        """Strike until cancelled."""
        faults = self._faults()
        names = list(faults)
        weights = [WEIGHTS[name] for name in names]
        first = self.first
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * self.every_s)
            (name,) = [first] if first else self.chance.choices(names, weights)
            first = ""
            with suppress(ProcessLookupError):
                at = monotonic()
                if what := await faults[name]():
                    self.struck.append(Struck(at, name, what))

    def _faults(self) -> Mapping[str, Callable[[], Awaitable[str]]]:
        faults: dict[str, Callable[[], Awaitable[str]]] = {
            "kill worker": self._kill_worker,
            "kill part": self._kill_part,
            "stop part": self._stop_part,
            "stop worker": self._stop_worker,
            "restart": self._restart,
            "reload": self._reload,
            "bad reload": self._bad_reload,
        }
        if not self.node.real:
            faults |= {
                "freeze": lambda: self._arm("frozen"),
                "hang": lambda: self._arm("hang"),
                "reset": lambda: self._arm("reset", after=3, times=3),
                "cut": lambda: self._arm("cut", after=2, times=3),
                "refuse": lambda: self._arm("error", status=500, times=4),
            }
        if self.kills_inferd:
            faults["kill inferd"] = self._kill_inferd
        return faults

    async def _worker(self) -> dict[str, Any] | None:
        """One that takes requests, if there is one."""
        status = await self.node.status()
        ready = self.node.ready(status)
        return self.chance.choice(ready) if ready else None

    async def _signal(self, number: signal.Signals, *, leader: bool, whole: bool = False) -> str:
        worker = await self._worker()
        if worker is None:
            return ""
        members = session_of(worker["pid"])
        parts = [pid for pid in members if pid != worker["pid"] and _is_part(pid)]
        if whole:
            hit = members
        elif leader or not parts:
            hit = [worker["pid"]]
        else:
            hit = [self.chance.choice(parts)]
        for pid in hit:
            os.kill(pid, number)
        return str(worker["worker"])

    async def _kill_worker(self) -> str:
        return await self._signal(signal.SIGKILL, leader=True)

    async def _kill_part(self) -> str:
        return await self._signal(signal.SIGKILL, leader=False)

    async def _stop_part(self) -> str:
        return await self._signal(signal.SIGSTOP, leader=False)

    async def _stop_worker(self) -> str:
        return await self._signal(signal.SIGSTOP, leader=True, whole=True)

    async def _restart(self) -> str:
        worker = await self._worker()
        if worker is None:
            return ""
        await self.node.post(f"/admin/v1/workers/{worker['worker']}/restart")
        return str(worker["worker"])

    async def _arm(self, kind: str, **parameters: int) -> str:
        worker = await self._worker()
        if worker is None:
            return ""
        url = f"{worker['url']}/fake/fault"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(2)
            body = {"kind": kind, **parameters}
            async with self.node.http.post(url, json=body, timeout=timeout) as answer:
                assert answer.status == 200
        return str(worker["worker"])

    async def _reload(self) -> str:
        changed = {
            "count": self.chance.randrange(max(1, self.node.workers - 1), self.node.workers + 1),
            "weight": self.chance.randrange(1, 5),
            "drain_s": self.chance.randrange(1, 6),
        }
        self.node.write_config(**changed)
        self.node.signal(signal.SIGHUP)
        return ", ".join(f"{key} {value}" for key, value in changed.items())

    async def _bad_reload(self) -> str:
        good = self.node.config.read_text()
        self.node.config.write_text(good.replace("weight =", "wieght ="))
        status = await self.node.post("/admin/v1/reload")
        self.node.config.write_text(good)
        assert status in {0, 400, 422}, f"a file with a mistake was taken: {status}"
        return f"refused with {status}" if status else ""

    async def _kill_inferd(self) -> str:
        before = {w["pid"] for w in self.node.workers_of(await self.node.status()) if w["pid"]}
        await self.node.kill()
        await asyncio.sleep(self.chance.uniform(0.0, 0.5))
        await self.node.start()
        now = {w["pid"] for w in self.node.workers_of(await self.node.status()) if w["pid"]}
        kept = len(before & now)
        self.left_behind += [pid for pid in before - now if session_of(pid)]
        took_s = self.node.up_at[-1] - self.node.killed_at[-1]
        return f"{kept} of {len(before)} workers kept, serving after {took_s:.1f} s"


WEIGHTS: Final = {
    "kill worker": 3,
    "kill part": 3,
    "stop part": 2,
    "stop worker": 2,
    "restart": 2,
    "reload": 3,
    "bad reload": 1,
    "freeze": 3,
    "hang": 1,
    "reset": 3,
    "cut": 3,
    "refuse": 2,
    "kill inferd": 2,
}


def _is_part(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sglang::")
    return False
