"""Gateway, workers and clients of one measurement, and what all of them did in a span of time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.benchmarks.files import waited_s
from scripts.benchmarks.relay.native import Load
from scripts.benchmarks.scale.gateway import Gateway, gateway
from scripts.benchmarks.scale.load import Client, Worker, client, worker
from scripts.benchmarks.scale.pause import pause

LOOK_S: Final = 0.1


class Kind(NamedTuple):
    """Of one model: its workers, their pace, and what is asked of it."""

    workers: int
    events_per_s: float
    load: Load
    padding_bytes: int = 0


class Cpu(NamedTuple):
    """Seconds of processor time."""

    gateway: float
    client: float
    worker: float

    def per(self, count: float) -> Cpu:
        """Microseconds for each of so many things."""
        return Cpu(*(part * 1e6 / count for part in self))


class Span(NamedTuple):
    """What happened in some seconds, and how things stood at their end."""

    seconds: float
    events: int
    requests: int
    failed: int
    late: int
    """Requests that could not be begun."""
    backlog: int
    """Events that workers had sent and clients had not yet."""
    open: int
    cpu: Cpu
    waited_s: float
    """How long the gateway's loop could have run and had no processor."""
    told: Mapping[str, Any]
    """Each client's report."""

    def in_cores(self) -> str:
        """Of the gateway, for people: what it used, and what it lacked."""
        used, lacked = self.cpu.gateway / self.seconds, self.waited_s / self.seconds
        return f"{used:.2f} of a core, {lacked:.2f} waited for one"

    def gap_p99_s(self, model: str) -> float:
        return float(self.told[model]["gap_us"][1]) / 1e6


@dataclass
class Rig:
    """What is measured."""

    gateway: Gateway
    workers: dict[str, list[Worker]]
    clients: dict[str, Client]

    def span(self, seconds: float) -> Span:
        """Look on for so long."""
        told, _ = self._reports()
        cpu_before, before = self._cpu(told), _sums(told)
        schedule = Path(f"/proc/{self.gateway.pid}/schedstat")
        began, waited_before_s = time.monotonic(), waited_s(schedule)
        pause(seconds)
        told, sent = self._reports()
        cpu, after = self._cpu(told), _sums(told)
        took_s = time.monotonic() - began
        return Span(
            seconds=took_s,
            events=after["events"] - before["events"],
            requests=after["requests"] - before["requests"],
            failed=after["failed"] - before["failed"],
            late=after["late"] - before["late"],
            backlog=sent - after["events"],
            open=after["open"],
            cpu=Cpu(*(now - then for now, then in zip(cpu, cpu_before, strict=True))),
            waited_s=waited_s(schedule) - waited_before_s,
            told=told,
        )

    def backlog(self) -> int:
        """Events on their way now; begins times anew."""
        told, sent = self._reports()
        return sent - _sums(told)["events"]

    def open(self) -> int:
        """Requests that clients have open now; begins times anew."""
        return _sums(self._reports()[0])["open"]

    def until_open(self, requests: int, within_s: float) -> bool:
        """Whether exactly so many are open in time."""
        until = time.monotonic() + within_s
        while self.open() != requests:
            if time.monotonic() > until:
                return False
            pause(LOOK_S)
        return True

    def end(self) -> dict[str, Any]:
        """No further requests; those that are open end with their next events.

        The counts of the whole run, and how many events were lost. It asks for clients that read
        everything: what others were sent counts as lost.
        """
        for one in self.clients.values():
            one.open(0)
        while any(self._look(at).open for of in self.workers.values() for at in of):
            for at in (at for of in self.workers.values() for at in of):
                at.end(at.open)
            pause(LOOK_S)
        told = {name: one.end() for name, one in self.clients.items()}
        sent = sum(self._look(at).sent for of in self.workers.values() for at in of)
        sums = _sums(told)
        return {**sums, "sent": sent, "lost": sent - sums["events"]}

    @staticmethod
    def _look(at: Worker) -> Worker:
        at.look()
        return at

    def _reports(self) -> tuple[dict[str, Any], int]:
        sent = sum(self._look(at).sent for of in self.workers.values() for at in of)
        return {name: one.report() for name, one in self.clients.items()}, sent

    def _cpu(self, told: Mapping[str, Any]) -> Cpu:
        return Cpu(
            self.gateway.used()[0],
            sum(float(one["cpu_s"]) for one in told.values()),
            sum(at.cpu_s() for of in self.workers.values() for at in of),
        )


def _sums(told: Mapping[str, Any]) -> dict[str, int]:
    found = {
        name: sum(int(one[name]) for one in told.values())
        for name in ("events", "requests", "late", "open", "disordered")
    }
    failed = sum(int(one["errors"]) + int(one["incomplete"]) for one in told.values())
    return {**found, "failed": failed}


@contextmanager
def rig(folder: Path, kinds: Mapping[str, Kind], *, stall_s: float = 30.0) -> Iterator[Rig]:
    """All of it, running; clients have begun nothing."""
    folder.mkdir()
    programs = folder.parent
    with ExitStack() as stack:
        workers: dict[str, list[Worker]] = {}
        for name, kind in kinds.items():
            how = (programs, name, kind.events_per_s, kind.padding_bytes)
            workers[name] = [stack.enter_context(worker(*how)) for _ in range(kind.workers)]
        pools = {name: [one.port for one in some] for name, some in workers.items()}
        one = stack.enter_context(gateway(folder, pools, stall_s=stall_s))
        clients = {
            name: stack.enter_context(client(programs, one.port, one.key, kind.load))
            for name, kind in kinds.items()
        }
        yield Rig(one, workers, clients)
