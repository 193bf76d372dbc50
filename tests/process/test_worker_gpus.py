"""Workers on GPUs: each has some of its own, and one for which there are too few waits."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from inferd.workers import engine
from inferd.workers.gpus import Gpus
from inferd.workers.process import session_members
from inferd.workers.states import WorkerState
from tests.fakes.fake_gpus import GIB, FakeGpuLibrary
from tests.process.test_worker_life import of_process
from tests.process.worker_rig import ID, running, until

pytestmark = pytest.mark.real_time(timeout_s=60)

S = WorkerState


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that ignore a SIGTERM are waited for, but not for 20 s."""
    monkeypatch.setattr(engine, "STOP_GRACE_S", 1.0)


async def test_each_worker_has_gpus_of_its_own_and_one_too_many_waits(tmp_path: Path) -> None:
    gpus = Gpus("4567")
    async with running(tmp_path, gpus) as rig:
        rig.supervisor.apply([rig.pool(rig.on_gpus(2), count=3)])
        ids = [ID, "chat-1-2", "chat-1-3"]
        for worker_id in ids[:2]:
            await rig.diary.entered(S.READY, worker_id=worker_id)
        shown = [rig.supervisor.workers[worker_id].pid or 0 for worker_id in ids[:2]]
        assert [visible_devices(pid) for pid in shown] == ["4,5", "6,7"]
        waits = rig.supervisor.workers[ids[2]]
        assert waits.state is S.FAILED
        assert waits.reason == (
            "the engine cannot be started: it needs 2 GPUs, this machine has 4, 0 are free"
        )
        assert waits.outlook == "starts as soon as 2 of the GPUs are free"
        os.kill(shown[0], signal.SIGKILL)
        await rig.diary.entered(S.READY, worker_id=ids[2])
        assert visible_devices(rig.supervisor.workers[ids[2]].pid or 0) == "4,5"
        await until("the first one waits now", lambda: rig.worker.outlook.startswith("starts as"))
        assert gpus.free == 0
        rig.supervisor.apply([rig.pool(rig.on_gpus(2), count=1)])
        await rig.diary.entered(S.READY, times=2)
    assert gpus.free == 4


async def test_a_bad_gpu_drains_its_worker_which_starts_again_on_another(tmp_path: Path) -> None:
    library = FakeGpuLibrary(2)
    gpus = Gpus("01", library=library)
    async with running(tmp_path, gpus) as rig:
        rig.supervisor.apply([rig.pool(rig.on_gpus(1))])
        await rig.diary.entered(S.READY)
        assert rig.worker.devices == ("0",)
        first = rig.worker.pid
        library.set(0, memory_used_bytes=70 * GIB)
        gpus.quarantine("0", "Xid 79: it has fallen off the bus")
        await rig.diary.entered(S.DRAINING)
        await until("its processes are gone", lambda: not session_members(first))
        assert rig.diary.states()[-1] == "draining", "its memory is not back"
        library.set(0, memory_used_bytes=0)
        await rig.diary.entered(S.READY, times=2)
        assert rig.worker.devices == ("1",)
        assert visible_devices(rig.worker.pid) == "1"
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in of_process(rig.worker.pid, "environ").split("\0")
    assert gpus.free == 1


async def test_a_failed_worker_has_no_gpus_and_no_process(tmp_path: Path) -> None:
    library = FakeGpuLibrary(1)
    gpus = Gpus("0", library=library)
    async with running(tmp_path, gpus) as rig:
        on_gpu = rig.on_gpus(1)
        limits = on_gpu.workers.model_copy(update={"restarts_per_hour_max": 0})
        rig.supervisor.apply([rig.pool(replace(on_gpu, workers=limits))])
        await rig.diary.entered(S.READY)
        os.kill(rig.worker.pid, signal.SIGKILL)
        await until("it is given up", lambda: rig.worker.outlook.startswith("given up"))
        assert (rig.worker.devices, rig.worker.pid) == ((), None)
        gpus.quarantine("0", "Xid 79: it has fallen off the bus")
        assert rig.worker.outlook.startswith("given up")
        assert not rig.worker.draining, "a GPU that it has not is none of its business"


def visible_devices(pid: int) -> str:
    environ = of_process(pid, "environ").split("\0")
    return dict(entry.partition("=")[::2] for entry in environ)["CUDA_VISIBLE_DEVICES"]
