from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from inferd.config.version import EngineOptions, Workers
from inferd.errors import ProvisionError
from inferd.workers import engine
from inferd.workers.engine import Counters, Loads
from inferd.workers.process import Program
from inferd.workers.spec import WorkerSpec

CAPTURES = Path(__file__).parents[2] / "data" / "engine_captures"


class Environment:
    def command(self) -> list[str]:
        return ["/engine/bin/python", "-m", "sglang.launch_server"]

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        return {"PYTHONPATH": "/shims", **extra}


def spec(**options: object) -> WorkerSpec:
    return WorkerSpec(
        model="chat",
        weights=Path("/models/chat"),
        checksum=None,
        context_tokens_max=4096,
        engine=EngineOptions.model_validate(options),
        workers=Workers(),
    )


def flags(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments, [*arguments[1:], ""], strict=True))


def test_every_option_becomes_its_flag() -> None:
    arguments = engine.arguments(
        spec(
            device="cpu",
            running_max=16,
            queued_max=32,
            chunked_prefill_tokens=512,
            kv_tokens_max=16_384,
            stream_interval=2,
            tool_call_parser="qwen",
            reasoning_parser="qwen3",
        ),
        30_000,
        Path("/state/engine.yaml"),
    )
    got = flags(arguments)
    assert got["--config"] == "/state/engine.yaml"
    assert got["--model-path"] == "/models/chat"
    assert got["--served-model-name"] == "chat"
    assert (got["--host"], got["--port"]) == ("127.0.0.1", "30000")
    assert (got["--device"], got["--attention-backend"]) == ("cpu", "torch_native")
    assert got["--context-length"] == "4096"
    assert (got["--max-running-requests"], got["--max-queued-requests"]) == ("16", "32")
    assert (got["--chunked-prefill-size"], got["--max-total-tokens"]) == ("512", "16384")
    assert (got["--tool-call-parser"], got["--reasoning-parser"]) == ("qwen", "qwen3")
    assert got["--stream-interval"] == "2"


def test_what_an_engine_must_always_be_told() -> None:
    arguments = engine.arguments(spec(tensor_parallel=8), 1, Path("k.yaml"))
    got = flags(arguments)
    assert got["--tp-size"] == "8"
    assert got["--default-priority-value"] == "0"
    assert got["--load-snapshot-publish-interval"] == "1"
    assert {
        "--sleep-on-idle",
        "--skip-server-warmup",
        "--enable-metrics",
        "--enable-cache-report",
        "--enable-priority-scheduling",
        "--constrained-json-disable-any-whitespace",
    } <= set(arguments)
    assert "--attention-backend" not in arguments
    assert "--max-total-tokens" not in arguments


def test_extra_arguments_come_last_and_extra_environment_wins() -> None:
    wanted = spec(
        extra_args=("--dtype", "float16"), env={"OMP_NUM_THREADS": "4", "A": "b"}, threads=2
    )
    program = engine.program(
        wanted, Environment(), port=7, key_file=Path("k.yaml"), folder=Path("/state")
    )
    assert program.arguments[:3] == ("/engine/bin/python", "-m", "sglang.launch_server")
    assert program.arguments[-2:] == ("--dtype", "float16")
    assert program.environment == {"PYTHONPATH": "/shims", "OMP_NUM_THREADS": "4", "A": "b"}


def test_the_key_is_in_no_argument_and_its_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("left from before")
    engine.write_key_file(path, "secret-key")
    assert orjson.loads(path.read_bytes()) == {"api-key": "secret-key"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("untouched")
    (tmp_path / "engine.yaml").symlink_to(target)
    engine.write_key_file(tmp_path / "engine.yaml", "secret-key")
    assert target.read_text() == "untouched"


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind((engine.HOST, engine.free_port()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v1_loads_idle.http", Loads(0, 0, 0, 16_384)),
        ("v1_loads_busy.json", Loads(32, 8, 893, 16_384)),
    ],
)
def test_loads_of_the_real_engine(name: str, expected: Loads) -> None:
    body = (CAPTURES / name).read_bytes().rpartition(b"\r\n\r\n")[2]
    assert engine.parse_loads(body) == expected


def test_loads_are_summed_over_ranks() -> None:
    rank = {
        "num_running_reqs": 3,
        "num_waiting_reqs": 1,
        "num_used_tokens": 250,
        "max_total_num_tokens": 1_000,
    }
    loads = engine.parse_loads(orjson.dumps({"loads": [rank, rank]}))
    assert loads == Loads(6, 2, 500, 2_000)
    assert loads.kv_utilization == 0.25


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b'{"loads": 3}', b'{"loads": [{}]}', b'{"loads": [null]}'],
)
def test_a_strange_report_is_unknown(body: bytes) -> None:
    assert engine.parse_loads(body) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream_interval":8}', 8),
        (b'{"stream_interval":0}', 1),
        (b'{"stream_interval":true}', 1),
        (b'{"stream_interval":99999999}', 1),
        (b"[]", 1),
        (b"{}", 1),
        (b"<html>", 1),
    ],
)
def test_how_many_tokens_an_event_of_somebody_elses_engine_has(body: bytes, expected: int) -> None:
    assert engine.tokens_per_event(body) == expected


def test_counters_of_the_real_engine() -> None:
    got = engine.parse_counters((CAPTURES / "metrics.http").read_text())
    assert got == Counters(prompt_tokens=2_431, cached_tokens=1_619, completion_tokens=3_149)


def test_counters_before_the_first_request_are_zero() -> None:
    assert engine.parse_counters("# HELP nothing\n") == Counters(0, 0, 0)


def test_no_descriptor_left_means_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(socket, "socket", refuse)
    assert engine.free_port() == 0


def program(made: WorkerSpec, devices: tuple[str, ...] = ()) -> Program:
    return engine.program(
        made,
        Environment(),
        port=30_000,
        key_file=Path("/state/engine.yaml"),
        folder=Path("/state"),
        devices=devices,
    )


def test_the_devices_are_all_that_the_engine_sees() -> None:
    made = program(spec(tensor_parallel=2), ("2", "3"))
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in program(spec(device="cpu")).environment


def test_devices_that_the_configuration_names_itself_are_refused() -> None:
    with pytest.raises(ProvisionError, match="`env` sets CUDA_VISIBLE_DEVICES"):
        program(spec(env={"CUDA_VISIBLE_DEVICES": "0"}), ("1",))


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ({}, 1),
        ({"tensor_parallel": 4}, 4),
        ({"device": "cpu", "extra_args": ("--dp-size", "2")}, 0),
        ({"tensor_parallel": 2, "extra_args": ("--tp-size", "4")}, 4),
        ({"tensor_parallel": 2, "extra_args": ("--dp-size=2", "--pp-size", "2")}, 8),
        ({"tensor_parallel": 4, "extra_args": ("--dp", "4", "--enable-dp-attention")}, 4),
        ({"tensor_parallel": 2, "extra_args": ("--dp", "many", "--dp")}, 2),
    ],
)
def test_how_many_gpus_an_engine_needs(options: dict[str, object], gpus: int) -> None:
    assert engine.gpus_needed(EngineOptions.model_validate(options)) == gpus


def test_keys_of_other_workers_are_kept_from_the_engine() -> None:
    with_secrets = replace(spec(env={"GIVEN": "x"}), secrets=frozenset({"PYTHONPATH", "GIVEN"}))
    made = program(with_secrets).environment
    assert "PYTHONPATH" not in made
    assert made["GIVEN"] == "x"  # somebody wants it there
