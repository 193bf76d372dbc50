"""All that inferd knows of SGLang 0.5.23's outside: flags, endpoints, reports.

What it prints is in `engine_output`, what it streams in `upstream`; no other module names a flag
or an endpoint of the engine.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from inferd.config.version import EngineOptions
from inferd.errors import ProvisionError
from inferd.inference import ModelKind
from inferd.workers.gpus import BY_BUS, ORDER, VISIBLE
from inferd.workers.process import Program
from inferd.workers.spec import Side, WorkerSpec
from inferd.workers.watchdog import RankReport

HOST: Final = "127.0.0.1"
READY_PATH: Final = "/ready"
LOADS_PATH: Final = "/v1/loads?include=core"
METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/health"
"""Makes a token when idle, and takes a second: to be asked rarely."""
MODELS_PATH: Final = "/v1/models"
INFO_PATH: Final = "/model_info"
SETTINGS_PATH: Final = "/server_info"
INTERVAL_MAX: Final = 4_096
"""A larger one is no number of tokens that an event could have."""
LOAD_ADAPTER_PATH: Final = "/load_lora_adapter"
UNLOAD_ADAPTER_PATH: Final = "/unload_lora_adapter"
EMBEDDED_MAX: Final = 2_048
"""Inputs of one embedding request; the engine queues each of them for itself."""
STOP_GRACE_S: Final = 20.0
"""The engine looks for a SIGTERM every 5 s and takes about 10 s when idle."""
LOAD_REPORTS: Final = "/dev/shm/sglang_loads_"  # noqa: S108 - the engine's choice
"""Each of its schedulers makes a file whose path begins so, and none of them removes it."""
UNPINNED: Final = "INFERD_SHIM_UNPINNED"
"""On a CPU: adapters and split workers ask for pinned memory, which needs an accelerator."""
NO_PARTNER: Final = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}
"""Fields of a request that one side of a pair answers alone, without moving any KV cache."""
_PARALLEL: Final = {
    "tp": frozenset({"--tp-size", "--tensor-parallel-size", "--tp"}),
    "pp": frozenset({"--pp-size", "--pipeline-parallel-size", "--pp"}),
    "dp": frozenset({"--dp-size", "--data-parallel-size", "--dp"}),
    "nodes": frozenset({"--nnodes"}),
}
_WORK: Final = ("num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens")
_DP_ATTENTION: Final = "--enable-dp-attention"


class Environment(Protocol):
    """Where the engine is installed: `provision.EngineEnvironment`, or a stand-in for tests."""

    def command(self) -> list[str]:
        """The program and its first arguments; the engine's flags follow."""

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of its processes, with `extra` laid over it."""


@dataclass(frozen=True, slots=True)
class Loads:
    """What an engine reports of itself, over all its data-parallel ranks."""

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int
    ranks: tuple[RankReport, ...] = field(default=(), compare=False)

    @property
    def kv_utilization(self) -> float:
        """Share of the KV cache held by running requests, 0 to 1."""
        return min(self.used_tokens / self.total_tokens, 1.0) if self.total_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Counters:
    """An engine's own bill since it started, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def program(
    spec: WorkerSpec,
    environment: Environment,
    *,
    port: int,
    key_file: Path,
    folder: Path,
    devices: tuple[str, ...] = (),
    bootstrap_port: int | None = None,
) -> Program:
    """The engine for `spec`, listening on `port`; `folder` is where it runs, `devices` its GPUs.

    Raises:
        ProvisionError: the configuration names the devices itself.
    """
    options = spec.engine
    extra = {"OMP_NUM_THREADS": str(options.threads), **options.env}
    if options.device == "cpu" and (options.lora or spec.side is not Side.WHOLE):
        extra.setdefault(UNPINNED, "1")
    if devices:
        if VISIBLE in options.env:
            raise ProvisionError(
                f"`env` sets {VISIBLE}, but inferd gives each worker its GPUs: remove it there;"
                " what inferd may use is what its own environment says"
            )
        extra[VISIBLE] = ",".join(devices)
        extra.setdefault(ORDER, BY_BUS)
    whole = environment.env(extra)
    return Program(
        arguments=(
            *environment.command(),
            *arguments(spec, port, key_file, bootstrap_port),
        ),
        environment={
            name: value
            for name, value in whole.items()
            if name not in spec.secrets or name in options.env
        },
        folder=folder,
        files=LOAD_REPORTS,
    )


def gpus_needed(options: EngineOptions) -> int:
    """How many GPUs of this node an engine computes on, by its flags; `extra_args` win here too."""
    if options.device == "cpu":
        return 0
    sizes = {"tp": options.tensor_parallel, "pp": 1, "dp": 1, "nodes": 1}
    words = [word for argument in options.extra_args for word in argument.split("=", 1)]
    for flag, value in pairwise(words):
        for kind, names in _PARALLEL.items():
            if flag in names and value.isdecimal():
                sizes[kind] = int(value)
    if _DP_ATTENTION in words:  # the ranks share the GPUs of one
        sizes["dp"] = 1
    return max(sizes["tp"] * sizes["pp"] * sizes["dp"] // max(sizes["nodes"], 1), 1)


def arguments(
    spec: WorkerSpec, port: int, key_file: Path, bootstrap_port: int | None = None
) -> list[str]:
    """The engine's flags; `extra_args` come last and win.

    `bootstrap_port` is where a worker that computes prompts meets those that decode.
    """
    options = spec.engine
    flags: dict[str, object] = {
        "--config": key_file,
        "--model-path": spec.weights,
        "--served-model-name": spec.model,
        "--host": HOST,
        "--port": port,
        "--device": options.device,
        "--attention-backend": "torch_native" if options.device == "cpu" else None,
        "--tp-size": options.tensor_parallel,
        "--context-length": spec.context_tokens_max,
        "--max-running-requests": options.running_max,
        "--max-queued-requests": _queued_max(spec),
        "--chunked-prefill-size": options.chunked_prefill_tokens,
        "--max-total-tokens": options.kv_tokens_max,
        "--kv-cache-dtype": options.kv_dtype,
        "--quantization": options.quantization,
        "--stream-interval": options.stream_interval,
        "--tool-call-parser": options.tool_call_parser,
        "--reasoning-parser": options.reasoning_parser,
        "--log-level-http": "warning",  # else every probe is a line of output
        "--default-priority-value": 0,  # else a request without one counts as the lowest of all
        "--load-snapshot-publish-interval": 1,  # by default loads are 15 steps old
        "--json-model-override-args": _model_overrides(spec),
    }
    switches: tuple[str, ...] = (
        "--sleep-on-idle",  # an idle scheduler would burn a whole core
        "--skip-server-warmup",  # inferd warms it up itself, and books it
        "--enable-metrics",
        "--enable-cache-report",
        "--enable-priority-scheduling",
        "--constrained-json-disable-any-whitespace",
    )
    if spec.kind is ModelKind.EMBEDDING:
        switches = (*switches, "--is-embedding")
    set_flags = [(flag, str(value)) for flag, value in flags.items() if value is not None]
    return [
        *(part for pair in set_flags for part in pair),
        *switches,
        *_lora_flags(options),
        *_side_flags(spec, bootstrap_port),
        *options.extra_args,
    ]


def _lora_flags(options: EngineOptions) -> list[str]:
    lora = options.lora
    if lora is None:
        return []
    flags = ["--enable-lora", "--max-lora-rank", str(lora.rank_max)]
    flags += ["--max-loras-per-batch", str(lora.running_max)]
    flags += ["--lora-target-modules", *lora.targets]
    if lora.loaded_max is not None:
        flags += ["--max-loaded-loras", str(lora.loaded_max)]
    return [*flags, "--lora-backend", "torch_native"] if options.device == "cpu" else flags


def _side_flags(spec: WorkerSpec, bootstrap_port: int | None) -> list[str]:
    if spec.side is Side.WHOLE or spec.transfer is None:
        return []
    on_cpu = spec.engine.device == "cpu"
    over_tcp = on_cpu and spec.transfer == "mooncake"
    transfer = "mooncake_tcp" if over_tcp else spec.transfer
    flags = ["--disaggregation-mode", spec.side, "--disaggregation-transfer-backend", transfer]
    if spec.side is Side.PREFILL:
        return [*flags, "--disaggregation-bootstrap-port", str(bootstrap_port)]
    # The default backup of a retracted request's KV cache is memory that CUDA has pinned.
    return [*flags, "--disaggregation-decode-retraction-backup", "cpu_tensor"] if on_cpu else flags


def _queued_max(spec: WorkerSpec) -> int:
    if spec.kind is ModelKind.EMBEDDING:
        return max(spec.engine.queued_max, EMBEDDED_MAX)
    return spec.engine.queued_max


def _model_overrides(spec: WorkerSpec) -> str | None:
    """Which sizes of an embedding the engine may cut it to."""
    return json.dumps({"matryoshka_dimensions": spec.dimensions}) if spec.dimensions else None


def write_key_file(path: Path, api_key: str) -> None:
    """Where the engine reads its key from: a flag would show in every process listing.

    Only the one key is set: with a second one for admins the engine would refuse aborts to it, and
    without that one it refuses the routes that change weights to everybody.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"api-key": api_key}, file)  # JSON is YAML


def free_port() -> int:
    """A port of the loopback address that nobody listens on now; somebody may a moment later.

    0 when there is none, or no descriptor to look for one.
    """
    try:
        with socket.socket() as listener:
            listener.bind((HOST, 0))
            port: int = listener.getsockname()[1]
            return port
    except OSError:
        return 0


def generates(body: bytes) -> bool | None:
    """The body of INFO_PATH: whether the engine writes text; None when it does not tell."""
    try:
        told = orjson.loads(body)["is_generation"]
    except (ValueError, TypeError, KeyError):
        return None
    return told if isinstance(told, bool) else None


def parse_loads(body: bytes) -> Loads | None:
    """The body of LOADS_PATH; None when it is not what this engine sends: unknown, never idle."""
    try:
        ranks: list[dict[str, Any]] = orjson.loads(body)["loads"]
        return Loads(
            running=sum(int(rank["num_running_reqs"]) for rank in ranks),
            waiting=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
            used_tokens=sum(int(rank["num_used_tokens"]) for rank in ranks),
            total_tokens=sum(int(rank["max_total_num_tokens"]) for rank in ranks),
            ranks=tuple(
                RankReport(
                    at=float(rank.get("timestamp", 0)),
                    # A prompt that is computed in chunks is in neither of the first two.
                    busy=any(int(rank.get(name, 0)) for name in _WORK),
                )
                for rank in ranks
            ),
        )
    except (ValueError, TypeError, KeyError):
        return None


_COUNTER: Final = re.compile(
    r"^sglang:(prompt|cached|generation)_tokens_total(?:\{.*\})? (\S+)$", re.MULTILINE
)


def parse_counters(text: str) -> Counters:
    """The token counters of METRICS_PATH, summed over their labels; zero before the first request.

    Raises:
        ValueError: a counter is not a number.
    """
    sums = {"prompt": 0.0, "cached": 0.0, "generation": 0.0}
    for name, value in _COUNTER.findall(text):
        sums[name] += float(value)
    return Counters(
        prompt_tokens=round(sums["prompt"]),
        cached_tokens=round(sums["cached"]),
        completion_tokens=round(sums["generation"]),
    )


def loaded_adapters(body: bytes) -> dict[str, str] | None:
    """Engine names and folders in the answer to a load or unload; None: it is no such answer."""
    try:
        told = orjson.loads(body)["loaded_adapters"]
    except (ValueError, TypeError, KeyError):
        return None
    return told if isinstance(told, dict) else None


def adapter_names(body: bytes) -> frozenset[str]:
    """The body of MODELS_PATH: adapters that the engine holds, by the names it was given."""
    try:
        listed = orjson.loads(body)["data"]
        return frozenset(str(one["id"]) for one in listed if one.get("parent"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return frozenset()


def bootstrap_port(body: bytes) -> int | None:
    """The body of SETTINGS_PATH: where a worker that computes prompts is met."""
    try:
        return int(orjson.loads(body)["disaggregation_bootstrap_port"])
    except (ValueError, TypeError, KeyError):
        return None


def tokens_per_event(body: bytes) -> int:
    """The body of SETTINGS_PATH: the most tokens in one event of a stream; 1 if it does not say."""
    try:
        interval = orjson.loads(body)["stream_interval"]
    except (ValueError, TypeError, KeyError):
        return 1
    return interval if type(interval) is int and 1 <= interval <= INTERVAL_MAX else 1
