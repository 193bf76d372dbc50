"""What the configuration asks of workers, frozen: one PoolSpec a version, made once per (re)load.

`spec_hash` names what an engine was started with: a running worker whose hash differs from the
wanted one must be replaced. What only the gateway acts on (drain time, backoff) is not part of it,
nor are keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from inferd.config.load import LoadedConfig
from inferd.config.schema import Model
from inferd.config.version import AttachedWorker, EngineOptions, Version, Workers
from inferd.config.watchdog import Watchdog
from inferd.inference import ModelKind, adapter_of


class Side(StrEnum):
    """What a worker does of a request."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A LoRA adapter that a worker may be asked for."""

    name: str
    """Public."""
    key: str
    """The engine's name for it."""
    folder: Path


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker that inferd starts: the engine on one model folder."""

    model: str
    """The public name, which the engine serves and echoes."""
    weights: Path
    checksum: str | None
    context_tokens_max: int
    engine: EngineOptions
    workers: Workers
    secrets: frozenset[str] = frozenset()
    """Variables of the gateway that hold keys of other workers: no engine gets them."""
    kind: ModelKind = ModelKind.CHAT
    dimensions: tuple[int, ...] = ()
    """Sizes of an embedding that may be asked for; empty: only the model's own."""
    watchdog: Watchdog = field(default_factory=Watchdog)
    side: Side = Side.WHOLE
    transfer: str | None = None
    """What moves the KV cache between the sides."""
    adapters: tuple[AdapterSpec, ...] = ()
    """Loaded and unloaded while it runs."""

    @property
    def spec_hash(self) -> str:
        """64 hex digits; equal for two specs whose engines would be started alike."""
        parts = {
            "model": self.model,
            "weights": str(self.weights),
            "checksum": self.checksum,
            "context_tokens_max": self.context_tokens_max,
            "engine": self.engine.model_dump(mode="json"),
            "kind": self.kind,
            "dimensions": self.dimensions,
            "side": self.side,
            "transfer": self.transfer,
        }
        return _digest(parts)


@dataclass(frozen=True, slots=True)
class AttachedSpec:
    """A worker that someone else runs."""

    model: str
    """The name it wants in requests."""
    url: str
    api_key: str | None
    inflight_max: int
    kind: ModelKind = ModelKind.CHAT
    watchdog: Watchdog = field(default_factory=Watchdog)

    def __repr__(self) -> str:
        return f"AttachedSpec({self.url!r}, model={self.model!r})"

    @property
    def spec_hash(self) -> str:
        """Changes with anything a client of it must know, the key too, which it does not show."""
        parts = {
            "model": self.model,
            "url": self.url,
            "api_key": self.api_key,
            "inflight_max": self.inflight_max,
            "kind": self.kind,
        }
        return _digest(parts)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """All workers of one version on this node."""

    pool: str
    """`model@version`."""
    slug: str
    """The pool's name in worker ids, unique among pools and fit for a folder name."""
    worker: WorkerSpec | None
    """None: the version has no weights here, only workers that someone else runs."""
    count: int
    drain_s: float
    attached: tuple[AttachedSpec, ...]
    prefill_count: int = 0
    """Workers that compute prompts for the `count` that decode; 0: every worker does both."""

    def workers(self) -> dict[str, WorkerSpec | AttachedSpec]:
        """The wanted workers by id: `SLUG-1`, `-2` ...; `-p1` ... prefill, `-a1` ... attached."""
        wanted: dict[str, WorkerSpec | AttachedSpec] = {}
        if self.worker is not None and self.prefill_count:
            prefill = replace(self.worker, side=Side.PREFILL)
            wanted.update({f"{self.slug}-p{n}": prefill for n in range(1, self.prefill_count + 1)})
        if self.worker is not None:
            wanted.update({f"{self.slug}-{n}": self.worker for n in range(1, self.count + 1)})
        for number, attached in enumerate(self.attached, start=1):
            wanted[f"{self.slug}-a{number}"] = attached
        return wanted


def pools_from_config(
    loaded: LoadedConfig, environ: Mapping[str, str] | None = None
) -> list[PoolSpec]:
    """One pool for each version of each model, in the file's order.

    Keys of attached workers are read from `environ`, the process's own unless given; that the
    named variables are set was checked when the file was loaded.
    """
    variables = os.environ if environ is None else environ
    versions = [(model, version) for model in loaded.config.models for version in model.versions]
    secrets = frozenset(
        attached.key_env
        for _, version in versions
        for attached in version.attached
        if attached.key_env
    )
    slugs = _slugs([pool_name(model, version) for model, version in versions])
    return [
        PoolSpec(
            pool=pool_name(model, version),
            slug=slugs[pool_name(model, version)],
            worker=_worker(loaded, model, version, secrets),
            count=version.workers.count,
            drain_s=version.workers.drain_s,
            attached=tuple(
                _attached(model, version, attached, variables) for attached in version.attached
            ),
            prefill_count=version.split.prefill_workers if version.split else 0,
        )
        for model, version in versions
    ]


def pool_name(model: Model, version: Version) -> str:
    """How a version's pool is called: `model@version`."""
    return f"{model.name}@{version.version}"


def _worker(
    loaded: LoadedConfig, model: Model, version: Version, secrets: frozenset[str]
) -> WorkerSpec | None:
    if version.weights is None:
        return None
    return WorkerSpec(
        model=model.name,
        weights=loaded.resolve(version.weights),
        checksum=version.checksum,
        context_tokens_max=version.context_tokens_max or model.context_tokens_max,
        engine=version.engine,
        workers=version.workers,
        secrets=secrets,
        kind=ModelKind(model.kind),
        dimensions=model.dimensions,
        watchdog=version.watchdog,
        side=Side.DECODE if version.split else Side.WHOLE,
        transfer=version.split.transfer if version.split else None,
        adapters=tuple(
            AdapterSpec(one.name, one.key, loaded.resolve(adapter.weights))
            for adapter in version.adapters
            for one in (adapter_of(adapter.name, adapter.weights),)
        ),
    )


def _attached(
    model: Model, version: Version, attached: AttachedWorker, environ: Mapping[str, str]
) -> AttachedSpec:
    return AttachedSpec(
        model=attached.model or model.name,
        url=attached.url.rstrip("/"),
        api_key=environ.get(attached.key_env) if attached.key_env else None,
        inflight_max=attached.inflight_max,
        kind=ModelKind(model.kind),
        watchdog=version.watchdog,
    )


def _slugs(pools: list[str]) -> dict[str, str]:
    """`chat@2026-11` -> `chat-2026-11`; pools that would share one get a part of their hash."""
    plain = {pool: re.sub(r"[^A-Za-z0-9._-]+", "-", pool) for pool in pools}
    shared = Counter(plain.values())
    return {
        pool: f"{slug}-{_digest({'pool': pool})[:8]}" if shared[slug] > 1 else slug
        for pool, slug in plain.items()
    }


def _digest(parts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
