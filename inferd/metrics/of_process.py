"""What is counted of the process itself: its event loop, its database writer, its reloads."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Counter, Info, ProcessCollector

from inferd import __version__
from inferd.metrics.declare import LAG, ROWS, Bound, Declarations


class OfProcess(Declarations):
    """One of each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._declare_process()

    def _declare_process(self) -> None:
        self.writer_batch_rows = self._histogram(
            "inferd_writer_batch_rows", "", "Writes in one database transaction.", ROWS
        )
        self.writer_queue_depth = self._gauge(
            "inferd_writer_queue_depth", "", "Writes that wait for the database."
        )
        self.writer_rows_lost = self._counter(
            "inferd_writer_rows_lost", "", "Rows that could not be written and are gone."
        )
        self.loop_lag_s = self._histogram(
            "inferd_loop_lag_seconds", "", "How late the event loop runs a timer.", LAG
        )
        config_reloads = self._counter(
            "inferd_config_reloads", "outcome", "Reloads of inferd.toml, by how they ended."
        )
        self.config_reloads = Bound[str, Counter](config_reloads.labels)
        build = Info("inferd_build", "What is running.", registry=self._registry)
        build.info({"version": __version__, "python": platform.python_version()})
        ProcessCollector(namespace="inferd", registry=self._registry)
