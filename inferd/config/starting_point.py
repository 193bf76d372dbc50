"""The text of a first inferd.toml for one machine, as `inferd init` writes it. Pure.

What it writes loads as it is. Figures for GPUs come from a cost model of H100s: the largest prefill
step and the largest batch with which a token still takes 40 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DEMO_MODEL: Final = "smollm2-135m"
DEMO_WEIGHTS: Final = ".inferd/models/SmolLM2-135M-Instruct"
DEMO_CONTEXT_TOKENS: Final = 4_096
DEMO_RUNNING_MAX: Final = 16
_GPUS_OF_70B: Final = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """What a model can meet on this machine, and where that is known from (comment lines)."""

    chunk_tokens: int
    ttft_ms: int
    tpot_ms: int
    source: tuple[str, ...]


UNMEASURED: Final = Pace(
    chunk_tokens=256,
    ttft_ms=180_000,
    tpot_ms=1_000,
    source=("Not measured: figures that a slow machine with two cores can meet.",),
)

_COMMENT_COLUMN: Final = 35

_HEAD: Final = """\
# The configuration of inferd. Every key, with its type, range and default, is in docs/config.md.
# `inferd check` tells what is wrong with it; `inferd reload` applies a change while inferd runs.

[server]
listen = "127.0.0.1:8080"  # the public API; 0.0.0.0:8080 lets other machines in
admin_listen = "127.0.0.1:8081"  # for administrators, on this machine only
state_dir = ".inferd/state"  # database, admin key, output of workers

[engine]
environment = ".inferd/engine"  # made by `inferd engine install`

[logs]
level = "info"  # JSON lines on standard error
"""

_MODEL: Final = """
# {about}
[[models]]
name = "{name}"  # what clients write as `model`
default_version = "1"
context_tokens_max = {context:_}  # prompt and output together
output_tokens_max = {output:_}  # of one answer; a request that names no max_tokens gets this

# {source}
[models.targets]
ttft_ms = {ttft:_}  # first token, prompts up to 4,096 tokens
tpot_ms = {tpot:_}  # mean time per output token

[[models.versions]]
version = "1"
weights = "{weights}"{checksum}

[models.versions.engine]
{engine}

[models.versions.workers]
count = {count}
"""

_DEMO_ENGINE: Final = """\
device = "cpu"
threads = 1  # more of them wait for each other where cores are shared
running_max = {running}  # requests decoded together
queued_max = 64
kv_tokens_max = 16_384  # of all running requests together; bounds the memory
chunked_prefill_tokens = {chunk}  # prefill per step, beside which running answers wait
tool_call_parser = "qwen25\""""

_GPU_ENGINE: Final = """\
tensor_parallel = {tensor_parallel}  # GPUs of one worker
running_max = {running}  # decodes that leave room in 40 ms for prefill beside them
chunked_prefill_tokens = {chunk:_}  # {why}
# tool_call_parser = "llama3"  # how the model writes tool calls, if it does"""

_TEAM: Final = """
# Who uses and pays. Its keys are made with `inferd keys create`.
[[teams]]
name = "demo"
# models = ["{name}"]  # left out: every model
# weight = 1  # share of a full pool, against the other teams
# tokens_per_s = 2_000  # token bucket: how fast it fills ...
# burst_tokens = 100_000  # ... and its size; a request claims its prompt and max_tokens
"""


def first_file(
    gpus: Sequence[str], cores: int, pace: Pace = UNMEASURED, demo_checksum: str | None = None
) -> str:
    """An 8B on every GPU, and for eight of them a 70B, commented out; else the demo model.

    `gpus` are the names of the machine's GPUs; `pace` is what the demo model has shown on its CPU;
    `demo_checksum` that model's `checksum`.
    """
    if gpus:
        model, name = _gpu_models(gpus), "chat-8b"
    else:
        model, name = _demo_model(cores, pace, demo_checksum), DEMO_MODEL
    return _aligned(_HEAD + model + _TEAM.format(name=name))


def _demo_model(cores: int, pace: Pace, checksum: str | None) -> str:
    return _MODEL.format(
        about=f"No GPU here ({cores} cores): a small real model on the CPU, to try things.",
        name=DEMO_MODEL,
        context=DEMO_CONTEXT_TOKENS,
        output=1_024,
        source="\n# ".join(pace.source),
        ttft=pace.ttft_ms,
        tpot=pace.tpot_ms,
        weights=DEMO_WEIGHTS,
        checksum=f'\nchecksum = "{checksum}"' if checksum else "",
        engine=_DEMO_ENGINE.format(running=DEMO_RUNNING_MAX, chunk=pace.chunk_tokens),
        count=1,
    )


def _gpu_models(gpus: Sequence[str]) -> str:
    names = ", ".join(f"{count} x {name}" for name, count in Counter(gpus).items())
    text = _gpu_model(
        about=f"{names}: an 8B model, one worker a GPU.\n"
        "# Put the model's folder where `weights` says, then run `inferd check`.",
        name="chat-8b",
        engine=_GPU_ENGINE.format(
            tensor_parallel=1,
            running=192,
            chunk=1_024,
            why="a step of about 35 ms on an H100; 2,048 would be too long",
        ),
        count=len(gpus),
    )
    if len(gpus) < _GPUS_OF_70B:
        return text
    large = _gpu_model(
        about="Instead of the 8B: a 70B over eight GPUs.",
        name="chat-70b",
        engine=_GPU_ENGINE.format(
            tensor_parallel=_GPUS_OF_70B,
            running=152,
            chunk=512,
            why="a step of about 40 ms on H100s; 2,048 makes steps of 100 ms",
        ),
        count=len(gpus) // _GPUS_OF_70B,
    )
    about, *lines = large.strip().splitlines()
    return f"{text}\n{about}\n" + "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _gpu_model(about: str, name: str, engine: str, count: int) -> str:
    return _MODEL.format(
        about=about,
        name=name,
        context=32_768,
        output=4_096,
        source="What people who wait for an answer find quick enough.",
        ttft=800,
        tpot=40,
        weights=f".inferd/models/{name}",
        checksum="",
        engine=engine,
        count=count,
    )


def _aligned(text: str) -> str:
    """Comments behind values start in one column."""
    lines = []
    for line in text.splitlines():
        value, mark, comment = line.partition("  # ")
        lines.append(f"{value:<{_COMMENT_COLUMN}}# {comment}" if mark else line)
    return "\n".join(lines) + "\n"
