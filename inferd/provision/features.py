"""What an engine can do, by what it computes on. Facts, not probes.

Those of the CPU that say yes or no were requested of SGLang 0.5.23 and seen; the others are what
it declares.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from inferd.provision.machine import Machine
from inferd.provision.recipes import Device


class Works(StrEnum):
    YES = "yes"
    NO = "no"
    ON_REQUEST = "on request"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class Feature:
    """`remark` says on which condition, or why not; may be empty."""

    name: str
    works: Works
    remark: str = ""


_ON_CPU: Final = (
    Feature("models built like Llama", Works.YES),
    Feature("Qwen 3.5, Grok, Mamba, MiniCPM-V", Works.NO, "their kernels exist for GPUs only"),
    Feature("chat and completions, streamed or not", Works.YES),
    Feature("JSON schema and regular expressions", Works.YES),
    Feature("tool calls", Works.YES, "arguments follow the schema only with strict = true"),
    Feature("prefix cache with cached tokens reported", Works.YES),
    Feature("priorities with preemption, bounded queue", Works.YES),
    Feature("weights replaced while running", Works.YES),
    Feature("embeddings", Works.YES, "by a worker of their own (--is-embedding)"),
    Feature("LoRA adapters", Works.YES),
    Feature(
        "prefill and decode on separate workers",
        Works.ON_REQUEST,
        "`inferd engine install --with split`",
    ),
    Feature("speculative decoding", Works.NO, "its kernels exist for GPUs only"),
    Feature("tensor parallel", Works.UNVERIFIED, "processes on the same cores gain nothing"),
)
_ON_CUDA: Final = tuple(
    Feature(name, Works.UNVERIFIED)
    for name in (
        "chat and completions, streamed or not",
        "JSON schema and regular expressions",
        "tool calls",
        "prefix cache with cached tokens reported",
        "priorities with preemption, bounded queue",
        "weights replaced while running",
        "embeddings",
        "LoRA adapters",
        "prefill and decode on separate workers",
        "speculative decoding",
        "tensor parallel",
    )
)


def features(device: Device, here: Machine) -> tuple[Feature, ...]:
    """What an engine for `device` can do on the machine `here`."""
    if device is Device.CUDA:
        return _ON_CUDA
    amx = "this CPU has it; its kernels are not among the pinned packages" if here.amx else ""
    return (*_ON_CPU, Feature("AMX", Works.NO, amx or "this CPU has none; plain torch computes"))
