"""Makes the CPU build of torch usable by SGLang; python loads this in every engine process.

1. Torchvision's compiled operators are linked against CUDA, so `import torchvision` fails when it
   registers metadata for two. Just before that import their schemas are declared.
2. With INFERD_SHIM_UNPINNED=1 pinned memory, CUDA events and streams become no-ops: LoRA asks
   for them although copies on a CPU are synchronous anyway.
3. Garbage is looked for once in 100,000 new objects, not in 700: a start of three processes
   imports thousands of modules, all of which stay, and costs a quarter less for it.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

GARBAGE_AFTER_OBJECTS = 100_000
OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
PINNABLE = (
    "arange",
    "empty",
    "empty_like",
    "full",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
)


def declare_operators(torch: Any) -> None:
    """Declares what `import torchvision` attaches metadata to; nothing implements it."""
    for operator in OPERATORS:
        torch.library.define(f"torchvision::{operator}", SCHEMA)


def unpinned(factory: Callable[..., Any]) -> Callable[..., Any]:
    """`factory` of tensors, deaf to pin_memory."""

    def make(*arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        del pin_memory
        return factory(*arguments, **options)

    return make


class CompletedEvent:
    """A CUDA event on a machine whose work is done when the call returns."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def record(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def wait(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: CompletedEvent) -> float:
        return 0.0


class IdleStream:
    """The one CUDA stream of such a machine: never behind."""

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def wait_stream(self, _stream: object) -> None:
        pass

    def wait_event(self, _event: object) -> None:
        pass

    def record_event(self, event: CompletedEvent | None = None) -> CompletedEvent:
        return event or CompletedEvent()


def replace_pinning(torch: Any) -> None:
    """Part 2: pinned memory, events and streams as no-ops."""
    for name in PINNABLE:
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_arguments, **_options: tensor
    torch.cuda.Event = CompletedEvent
    torch.cuda.current_stream = lambda *_arguments, **_options: IdleStream()


class BeforeTorchvision(MetaPathFinder):
    """Finds nothing; acts once, when torchvision is first looked for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            declare_operators(torch)
            if os.environ.get("INFERD_SHIM_UNPINNED") == "1":
                replace_pinning(torch)
        return None


sys.meta_path.insert(0, BeforeTorchvision())
gc.set_threshold(GARBAGE_AFTER_OBJECTS)
