"""What an install tells whoever watches it. The command line draws it; tests collect it."""

from __future__ import annotations

from typing import Protocol

from inferd.provision.record import Step


class Progress(Protocol):
    """Calls come in order for each step; steps may overlap."""

    def started(self, step: Step, text: str) -> None:
        """`step` begins; `text` says what it does."""

    def detail(self, step: Step, text: str) -> None:
        """What a step does right now, a few words; comes often."""

    def finished(self, step: Step, text: str) -> None:
        """`step` is over; `text` says what came of it."""

    def note(self, text: str) -> None:
        """Something to know that belongs to no step."""
