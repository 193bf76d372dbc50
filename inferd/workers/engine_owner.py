"""How a worker comes by its engine and parts with it: spawned or taken over, ended or handed over.

Owns the engine's processes, output file, port, key, GPUs and record, all of which end with the life
unless the engine is left to the next inferd. A record is written before the process exists. What
happens between - the life itself - is `Worker`'s.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from pathlib import Path
from typing import Final

from inferd import clock
from inferd.errors import UpstreamError, WorkerUnreachable
from inferd.storage.workers import EngineRecord
from inferd.workers import engine
from inferd.workers.adapters import Adapters
from inferd.workers.adoption import end_found, fitting, program_hash
from inferd.workers.base import Node, WorkerBase
from inferd.workers.client import WorkerClient
from inferd.workers.load_progress import LoadProgress
from inferd.workers.output_log import LogReader, OutputLog
from inferd.workers.process import EngineProcess, ProcessRecord, adopt, boot_id, spawn
from inferd.workers.records import process_of, with_process
from inferd.workers.spec import Side, WorkerSpec
from inferd.workers.states import WorkerState, move

LET_GO: Final = "let go before it was ready"
LEFT: Final = "left running for the next inferd"


class EngineOwner(WorkerBase):
    """A worker with an engine of its own."""

    def __init__(
        self,
        worker_id: str,
        pool: str,
        spec: WorkerSpec,
        node: Node,
        previous: WorkerBase | None = None,
    ) -> None:
        earlier = fitting(node, worker_id, spec)
        self._port = earlier.port if earlier else engine.free_port()
        # Not base64, which may begin with "-", like an option.
        self._api_key = earlier.api_key if earlier else secrets.token_hex(32)
        client = WorkerClient(worker_id, f"http://{engine.HOST}:{self._port}", self._api_key)
        client.tokens_per_event = spec.engine.stream_interval
        super().__init__(
            worker_id,
            pool,
            node,
            client=client,
            spec_hash=spec.spec_hash,
            inflight_max=spec.engine.running_max,
            previous=previous,
        )
        self.spec = spec
        if spec.engine.lora is not None:
            client.adapters = Adapters(client, spec.engine.lora.loaded_max)
            client.adapters.want(spec.adapters)
        self._folder = node.folder / worker_id
        self._key_file = self._folder / "engine.yaml"
        self._output = OutputLog(self._folder / "output.log", spec.workers.log_bytes_max)
        self._reader = LogReader.near_end(self._output.path)
        self._heard = LoadProgress(clock.monotonic())
        self._process: EngineProcess | None = None
        self._earlier = earlier
        self._remembered: EngineRecord | None = None
        self._leaving = False
        self._hurried = False

    @property
    def adopted(self) -> bool:
        return self._earlier is not None

    @property
    def devices(self) -> tuple[str, ...]:
        return () if self._remembered is None else self._remembered.devices

    @property
    def record(self) -> ProcessRecord | None:
        """Which process this is, once there is one."""
        return None if self._process is None else self._process.record

    @property
    def pid(self) -> int | None:
        return None if self.record is None else self.record.pid

    @property
    def port(self) -> int:
        return self._port

    @property
    def output_path(self) -> Path:
        return self._output.path

    async def _live(self, process: EngineProcess) -> str:
        """The life, as long as there is an engine; how it ended, unless in FAILED."""
        raise NotImplementedError

    async def _begin(self) -> str:
        """Take over what an earlier inferd has left here, or spawn; how its life ended."""
        gpus = self._node.gpus
        needed = engine.gpus_needed(self.spec.engine)
        if (record := self._earlier) is not None and (process := self._adopt(record)) is not None:
            with gpus.claim(needed, record.mark):
                return await self._own(process, record)
        self._earlier = None
        move(self, WorkerState.SPAWNING)
        self._heard.phase = "ending the engine that an earlier inferd has left"
        await end_found(self._node, self.id)
        self._heard = LoadProgress(clock.monotonic())
        if not await self._weights_are_good():
            return LET_GO
        with gpus.claim(needed) as devices:
            record = self._remembered = self._new_record(devices)
            # Before the process exists: from then on a crash of inferd cannot orphan it.
            await self._node.records.remember(record)
            try:
                process = self._spawn(record)
            except BaseException:
                self._node.records.forget(record)
                raise
            return await self._own(process, record)

    def _adopt(self, record: EngineRecord) -> EngineProcess | None:
        """None: the process has just ended."""
        found = process_of(record)
        assert found is not None, "only an engine with a process fits"
        try:
            process = adopt(found, stop_grace_s=engine.STOP_GRACE_S, files=engine.LOAD_REPORTS)
        except OSError:
            return None
        self._node.records.take(record)
        process.on_exit = self._engine_ended
        self._process = process
        process.note_files()
        if not record.was_ready:
            move(self, WorkerState.SPAWNING)
        return process

    def _new_record(self, devices: tuple[str, ...]) -> EngineRecord:
        return EngineRecord(
            mark=secrets.token_hex(16),
            worker_id=self.id,
            boot_id=boot_id(),
            port=self._port,
            api_key=self._api_key,
            spec_hash=self.spec_hash,
            program_hash=program_hash(self.spec, self._node.environment),
            devices=devices,
            started_us=clock.utc_now_us(),
        )

    def leave(self) -> None:
        self._leaving = True
        super().leave()

    def hurry(self) -> None:
        self._hurried = True
        if self._process is not None:
            self._process.hurry()

    async def _weights_are_good(self) -> bool:
        """False when it was asked to end meanwhile; bad weights raise ProvisionError."""
        if self.spec.checksum is not None:
            self._heard.phase = "comparing its weights with their checksum"
        await self._node.weights.check(
            self.spec.weights, self.spec.checksum, over=lambda: self.draining
        )
        return not self.draining

    def _spawn(self, record: EngineRecord) -> EngineProcess:
        if not self._port:
            raise OSError("no port of the loopback address is free")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine.write_key_file(self._key_file, self._api_key)
        program = engine.program(
            self.spec,
            self._node.environment,
            port=self._port,
            key_file=self._key_file,
            folder=self._folder,
            devices=record.devices,
            bootstrap_port=engine.free_port() if self.spec.side is Side.PREFILL else None,
        )
        self._output.note(f"{self.id} starts: {shlex.join(program.arguments)}")
        self._reader = LogReader.near_end(self._output.path)
        self._heard = LoadProgress(clock.monotonic())
        with self._output.opened() as descriptor:
            self._process = spawn(
                program,
                output=descriptor,
                worker_id=self.id,
                port=self._port,
                spec_hash=self.spec_hash,
                stop_grace_s=engine.STOP_GRACE_S,
                mark=record.mark,
            )
        self._process.on_exit = self._engine_ended
        return self._process

    def _engine_ended(self) -> None:
        """At once: whoever waits for this engine's answer must not wait any longer."""
        self.client.fail_all(lost())
        self._woken.set()

    async def _own(self, process: EngineProcess, record: EngineRecord) -> str:
        """As long as there is a process: it is remembered, its output kept small; then it is gone.

        Or it is handed over to the next inferd, still remembered.
        """
        ending = ""
        if self._hurried:
            process.hurry()
        self._remember(with_process(record, process.record))
        try:
            async with asyncio.TaskGroup() as group:
                output = group.create_task(self._output.run())
                async with process:
                    ending = await self._live(process)
                    if self._leaving and not (
                        self._ended(process) or self.state is WorkerState.FAILED
                    ):
                        process.hand_over()
                        ending = LEFT
                output.cancel()
            if ending is not LEFT:
                await self._node.gpus.returned(record.devices)
        finally:
            if ending is not LEFT:
                self._node.records.forget(record)
        return ending

    def _remember(self, record: EngineRecord) -> None:
        self._remembered = record
        self._node.records.note(record)

    def _part(self) -> None:
        """From here on its process number and GPUs may be somebody else's: it has none."""
        self._remembered = None
        self._process = None

    @staticmethod
    def _ended(process: EngineProcess) -> bool:
        return process.exit_status is not None


def lost() -> UpstreamError:
    """What whoever waits for an engine that is gone is told."""
    return WorkerUnreachable("The worker was lost.")
