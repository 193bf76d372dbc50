"""Counts what the scheduler and the server do, under the real engine's metric names.

Like the real one it counts a request when it ends, nothing for what never started, and nothing
of a health probe but its tokens in `realtime_tokens_total`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from io import FileIO

import orjson

from tests.fake_engine.options import Options
from tests.fake_engine.scheduler import Generation

_SECONDS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_GAPS = (
    *(0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060),
    *(0.080, 0.100, 0.200, 0.400, 0.600, 0.800, 1, 2, 4, 6, 8),
)
_LONG = (*_SECONDS, 600, 1200, 1800, 2400)
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    """Cumulative buckets, as exposed."""

    buckets: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        self.counts = self.counts or [0] * len(self.buckets)
        for position, bound in enumerate(self.buckets):
            if value <= bound:
                self.counts[position] += 1
        self.total += value
        self.count += 1


class Metrics:
    """Observes the scheduler; `exposition` renders it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.counters: dict[str, Counter[Labels]] = defaultdict(Counter)
        self.histograms: dict[str, dict[Labels, Histogram]] = defaultdict(dict)
        self.prefill_uncached = 0
        self.prefill_cached = 0
        self.prefill_busy_us = 0
        self.retractions = 0
        self.cache_hit_rate = 0.0
        self.throughput = 0.0
        self._journal: FileIO | None = None
        if options.journal is not None:
            options.journal.mkdir(parents=True, exist_ok=True)
            self._journal = FileIO(options.journal / f"{os.getpid()}.jsonl", "a")

    def labels(self, priority: int | None = None, **more: str) -> Labels:
        """Label pairs in exposition order."""
        shown = "" if priority is None or not self._options.priority_scheduling else str(priority)
        labels = {
            "engine_type": "unified",
            "model_name": self._options.model,
            "priority": shown,
            **more,
        }
        return tuple(sorted(labels.items()))

    def ranks(self, **more: str) -> Labels:
        """Labels of what a scheduler rank measures."""
        return self.labels(None, moe_ep_rank="0", pp_rank="0", tp_rank="0", **more)

    def total(self, name: str) -> int:
        """Sum of a counter over its labels."""
        return sum(self.counters[name].values())

    def count_http(self, method: str, path: str, status: int | None) -> None:
        """A request came (status None) or was answered."""
        key = (("endpoint", path), ("method", method))
        if status is None:
            self.counters["http_requests_total"][key] += 1
        else:
            self.counters["http_responses_total"][(*key, ("status_code", str(status)))] += 1

    def aborted(self) -> None:
        self.counters["num_aborted_requests_total"][self.labels()] += 1

    def prefilled(self, computed: int, cached: int) -> None:
        self.prefill_uncached += computed
        self.prefill_cached += cached
        self.cache_hit_rate = cached / (computed + cached)
        realtime = self.counters["realtime_tokens_total"]
        realtime[self.ranks(mode="prefill_compute")] += computed
        realtime[self.ranks(mode="prefill_cache")] += cached
        effective = self.counters["prefill_effective_tokens_total"]
        effective[self.ranks(mode="input")] += computed
        effective[self.ranks(mode="device_hit")] += cached

    def first_token(self, generation: Generation) -> None:
        if not generation.probe:
            waited = generation.first_at - generation.arrived_at
            labels = self._streamed(generation)
            self._observe("time_to_first_token_seconds", labels, waited, _SECONDS)

    def next_token(self, generation: Generation, gap_s: float) -> None:
        self.counters["realtime_tokens_total"][self.ranks(mode="decode")] += 1
        if not generation.probe:
            labels = self.labels(generation.priority)
            self._observe("inter_token_latency_seconds", labels, gap_s, _GAPS)

    def stepped(self, seconds: float, prefill: int, decodes: int) -> None:
        if prefill:
            self.prefill_busy_us += round(seconds * 1_000_000)
        if decodes and seconds > 0:
            self.throughput = decodes / seconds

    def finished(self, generation: Generation) -> None:
        self.retractions += generation.retractions
        if generation.probe or generation.cached is None or generation.ended_waiting:
            return
        streamed = self._streamed(generation)
        output, cached = len(generation.output), generation.cached_tokens
        self.counters["prompt_tokens_total"][streamed] += len(generation.prompt)
        self.counters["generation_tokens_total"][streamed] += output
        self.counters["num_requests_total"][streamed] += 1
        if cached:
            labels = self.labels(generation.priority, cache_source="device")
            self.counters["cached_tokens_total"][labels] += cached
        if self._journal is not None:
            counted = {
                "rid": generation.rid,
                "prompt_tokens": len(generation.prompt),
                "cached_tokens": cached,
                "completion_tokens": output,
            }
            self._journal.write(orjson.dumps(counted, option=orjson.OPT_APPEND_NEWLINE))
        elapsed = generation.last_at - generation.arrived_at
        self._observe("e2e_request_latency_seconds", streamed, elapsed, _LONG)
        if generation.reason in {"stop", "length"} and output > 1:
            pace = (generation.last_at - generation.first_at) / (output - 1)
            self._observe("request_time_per_output_token_seconds", streamed, pace, _GAPS)

    def failed_inside(self, streaming: bool, priority: int | None) -> None:
        """A request whose grammar did not compile costs one prompt token and one of output."""
        shown = "true" if streaming else "false"
        labels = self.labels(self._options.priority(priority), is_streaming=shown)
        for name in ("prompt_tokens_total", "generation_tokens_total", "num_requests_total"):
            self.counters[name][labels] += 1

    def _streamed(self, generation: Generation) -> Labels:
        streaming = "true" if generation.streaming else "false"
        return self.labels(generation.priority, is_streaming=streaming)

    def _observe(self, name: str, labels: Labels, value: float, buckets: tuple[float, ...]) -> None:
        family = self.histograms[name]
        if labels not in family:
            family[labels] = Histogram(buckets)
        family[labels].observe(value)
