"""LoRA adapters of the fake engine: loaded, unloaded, and loaded again behind everybody's back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fake_engine.refusal import Refusal


class Adapters:
    """Those loaded now, by name, and those that once were: a request brings such a one back."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.loaded: dict[str, str] = {}
        self._known: dict[str, str] = {}

    def named(self, name: str) -> str:
        """The folder of an adapter, which its answers tell."""
        return Path(self._known[name]).name

    def load(self, name: str, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of a load."""
        if name in self.loaded:
            problem = f"Failed to load LoRA adapter {name} because it is already loaded"
            return 400, self._answer(problem)
        if not Path(path).is_dir():
            problem = (
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                f"'{path}'. Use `repo_type` argument if needed."
            )
            return 400, self._answer(problem)
        self.loaded[name] = self._known[name] = path
        return 200, self._answer("")

    def unload(self, name: str) -> tuple[int, dict[str, Any]]:
        """Status and body of an unload."""
        if self.loaded.pop(name, None) is None:
            return 400, self._answer(f"LoRA with name {name} does not exist")
        return 200, self._answer("")

    def asked(self, model: str, path: str | None) -> str | None:
        """Which adapter a request wants, by `lora_path` or behind a colon in `model`.

        Raises Refusal.
        """
        name = path or model.partition(":")[2] or None
        if name is None:
            return None
        if name not in self._known:
            message = (
                f"Got LoRA adapter that has never been loaded: {name}\n"
                f"All loaded adapters: {self.loaded.keys()!r}."
            )
            raise Refusal(400, message)
        self.loaded.setdefault(name, self._known[name])
        return name

    def _answer(self, problem: str) -> dict[str, Any]:
        return {
            "rid": None,
            "http_worker_ipc": None,
            "success": not problem,
            "error_message": problem,
            "loaded_adapters": dict(self.loaded),
        }
