"""What is counted of files: `metrics.file_bytes[team]`, `.file_transfers[direction, outcome]`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from inferd.metrics.declare import Bound, Declarations


class OfFiles(Declarations):
    """What teams keep, what comes and goes, and how the store fares."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._file_bytes = self._gauge(
            "inferd_file_bytes", "team", "Bytes of files that a team keeps."
        )
        self.file_bytes = Bound[str, Gauge](self._file_bytes.labels)
        transfers = self._counter(
            "inferd_file_transfers",
            "direction outcome",
            "Uploads and downloads by their end.",
        )
        self.file_transfers = Bound[tuple[str, str], Counter](lambda key: transfers.labels(*key))
        transferred = self._counter(
            "inferd_file_transfer_bytes", "direction", "Bytes of files that came and went."
        )
        self.file_transfer_bytes = Bound[str, Counter](transferred.labels)
        errors = self._counter(
            "inferd_file_store_errors", "operation", "Calls of the file store that failed."
        )
        self.file_store_errors = Bound[str, Counter](errors.labels)
        self.file_orphans_removed = self._counter(
            "inferd_file_orphans_removed", "", "Objects of no file, deleted from the store."
        )

    def forget_files(self, team: str) -> None:
        self.file_bytes.pop(team, None)
        self._file_bytes.remove_by_labels({"team": team})
