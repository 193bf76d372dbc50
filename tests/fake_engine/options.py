"""The command line: SGLang's own flags (unknown ones ignored) and the fake's."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.fake_engine.cost import PROFILES, Profile

LOWEST_PRIORITY = -(2**63)


@dataclass(frozen=True, slots=True)
class Options:
    """What one fake engine was started with. Sizes in tokens, durations in seconds at speed 1."""

    host: str
    port: int
    model: str
    model_path: str
    api_key: str | None
    admin_api_key: str | None
    context_length: int
    max_running_requests: int
    max_queued_requests: int | None
    max_total_tokens: int
    chunked_prefill_size: int
    page_size: int
    priority_scheduling: bool
    priority_preemption: bool
    preemption_threshold: int
    low_values_first: bool
    abort_on_stray_priority: bool
    default_priority: int | None
    cache_report: bool
    metrics: bool
    prefix_cache: bool
    is_embedding: bool
    enable_lora: bool
    disaggregation_mode: str
    bootstrap_port: int
    snapshot_interval: int
    stream_interval: int
    tool_call_parser: str | None
    weight_version: str
    speed: float
    load_seconds: float
    ready_seconds: float
    profile: Profile
    faults: tuple[dict[str, Any], ...]
    journal: Path | None
    arguments: tuple[str, ...]

    def scaled(self, seconds: float) -> float:
        """A duration of the real engine, at this one's speed."""
        return seconds / self.speed

    def priority(self, asked: int | None) -> int:
        """The priority a request runs at."""
        if not self.priority_scheduling:
            return 0
        if asked is not None:
            return asked
        return LOWEST_PRIORITY if self.default_priority is None else self.default_priority


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake_engine", allow_abbrev=False)
    flag = parser.add_argument
    flag("--host", default="127.0.0.1")
    flag("--port", type=int, default=30000)
    flag("--model-path", "--model", default="fake-model")
    flag("--served-model-name")
    flag("--api-key")
    flag("--admin-api-key")
    flag("--context-length", type=int, default=4096)
    flag("--max-running-requests", type=int, default=16)
    flag("--max-queued-requests", type=int)
    flag("--max-total-tokens", type=int, default=16384)
    flag("--chunked-prefill-size", type=int, default=512)
    flag("--page-size", type=int, default=1)
    flag("--enable-priority-scheduling", action="store_true")
    flag("--disable-priority-preemption", action="store_true")
    flag("--priority-scheduling-preemption-threshold", type=int, default=10)
    flag("--schedule-low-priority-values-first", action="store_true")
    flag("--abort-on-priority-when-disabled", action="store_true")
    flag("--default-priority-value", type=int)
    flag("--enable-cache-report", action="store_true")
    flag("--enable-metrics", action="store_true")
    flag("--disable-radix-cache", action="store_true")
    flag("--is-embedding", action="store_true")
    flag("--enable-lora", action="store_true")
    flag("--disaggregation-mode", default="null", choices=["null", "prefill", "decode"])
    flag("--disaggregation-bootstrap-port", type=int, default=8998)
    flag("--load-snapshot-publish-interval", type=int, default=15)
    flag("--stream-interval", type=int, default=1)
    flag("--tool-call-parser")
    flag("--weight-version", default="default")
    flag("--speed", type=float, default=1.0)
    flag("--load-seconds", type=float, default=0.0)
    flag("--ready-seconds", type=float, default=0.0)
    flag("--profile", choices=sorted(PROFILES), default="cpu")
    flag("--fault", action="append", type=orjson.loads, default=[])
    flag("--journal", type=Path)
    return parser


def with_config_file(arguments: list[str]) -> list[str]:
    """Put the flags of a `--config FILE.yaml` before the others, which win.

    Raises ValueError for what the real engine refuses. Only JSON, a subset of YAML, is read.
    """
    if "--config" not in arguments:
        return arguments
    position = arguments.index("--config")
    path = Path(arguments[position + 1])
    if path.suffix.lower() not in {".yaml", ".yml"}:
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    flags: list[str] = []
    for name, value in orjson.loads(path.read_bytes()).items():
        if value is True:
            flags.append(f"--{name}")
        elif value is not False:
            flags += [f"--{name}", str(value)]
    return [*flags, *arguments[:position], *arguments[position + 2 :]]


def parse(arguments: list[str]) -> Options:
    """Read a command line; exits with argparse's message on a bad value. Raises ValueError."""
    got, _unknown = _parser().parse_known_args(with_config_file(arguments))
    return Options(
        host=got.host,
        port=got.port,
        model=got.served_model_name or got.model_path,
        model_path=got.model_path,
        api_key=got.api_key,
        admin_api_key=got.admin_api_key,
        context_length=got.context_length,
        max_running_requests=got.max_running_requests,
        max_queued_requests=got.max_queued_requests,
        max_total_tokens=got.max_total_tokens,
        chunked_prefill_size=got.chunked_prefill_size,
        page_size=got.page_size,
        priority_scheduling=got.enable_priority_scheduling,
        priority_preemption=not got.disable_priority_preemption,
        preemption_threshold=got.priority_scheduling_preemption_threshold,
        low_values_first=got.schedule_low_priority_values_first,
        abort_on_stray_priority=got.abort_on_priority_when_disabled,
        default_priority=got.default_priority_value,
        cache_report=got.enable_cache_report,
        metrics=got.enable_metrics,
        prefix_cache=not got.disable_radix_cache,
        is_embedding=got.is_embedding,
        enable_lora=got.enable_lora,
        disaggregation_mode=got.disaggregation_mode,
        bootstrap_port=got.disaggregation_bootstrap_port,
        snapshot_interval=got.load_snapshot_publish_interval,
        stream_interval=got.stream_interval,
        tool_call_parser=got.tool_call_parser,
        weight_version=got.weight_version,
        speed=got.speed,
        load_seconds=got.load_seconds,
        ready_seconds=got.ready_seconds,
        profile=PROFILES[got.profile],
        faults=tuple(got.fault),
        journal=got.journal,
        arguments=tuple(arguments),
    )
