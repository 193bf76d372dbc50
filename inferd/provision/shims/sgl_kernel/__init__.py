"""Stands in for the CUDA-only `sgl_kernel` on a machine without a GPU.

SGLang's CPU mode imports a few kernels by name when its modules load. On a CPU they are reached
only by speculative decoding and by moves of the KV cache, neither of which inferd turns on there.
So every name can be imported, and a call of any of them raises: nothing is ever faked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

# The release whose import surface this follows; SGLang reads it when it loads.
__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """A kernel of that name which raises NotImplementedError when it is called."""
    if name.startswith("__"):
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)

    def kernel(*_arguments: object, **_options: object) -> NoReturn:
        message = f"{name} needs the CUDA kernels of SGLang, which a CPU engine does not have"
        raise NotImplementedError(message)

    kernel.__name__ = name
    return kernel
