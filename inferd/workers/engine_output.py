"""What SGLang 0.5.23 prints, and what that means: phases of loading, reasons of failure. Pure.

Reasons are plain words that end with the next step. Lines were taken from real runs and from the
engine's source; an unknown line means nothing and is shown as it is.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

from inferd.workers.process_table import UNKNOWN_STATUS

STARTING: Final = "starting python"
_REQUEST_LINE: Final = re.compile(r'"(?:GET|POST) \S+ HTTP/1\.[01]" \d{3}')
_PHASES: Final = (
    (re.compile(r"\bserver_args="), "starting its processes"),
    (re.compile(r"Load weight begin"), "loading weights"),
    (re.compile(r"Load weight end"), "weights loaded"),
    (re.compile(r"KV Cache is allocated|Memory pool end"), "KV cache allocated"),
    (re.compile(r"Capture \w+ graph begin"), "capturing graphs"),
    (re.compile(r"Capture \w+ graph end"), "graphs captured"),
    (re.compile(r"max_total_num_tokens="), "starting its server"),
    (re.compile(r"Uvicorn running on|fired up and ready"), "listening"),
)


def phase_of(line: str) -> str | None:
    """The phase of loading that a line of output begins, in plain words."""
    return next((phase for pattern, phase in _PHASES if pattern.search(line)), None)


def is_request_line(line: str) -> bool:
    """Whether a line of output only says that somebody, perhaps our own probe, asked for a URL."""
    return _REQUEST_LINE.search(line) is not None


# Anchored: in the text of a request, which an engine can be told to log, it means nothing.
_DEATH: Final = re.compile(r"^\[[0-9 :-]+\] Subprocess \w+ \(pid=\d+\) crashed with exit code")


def tells_of_death(line: str) -> bool:
    """Whether a part of the engine has died, so that it answers nothing from here on.

    It notices within a second but ends only six later; meanwhile whoever asks it would hang.
    """
    return _DEATH.search(line) is not None


_FAILURES: Final = (
    (
        re.compile(r"CUDA out of memory|OutOfMemoryError|Not enough memory\. Please try"),
        (
            "the GPU has too little memory: lower engine.kv_tokens_max or engine.running_max, raise"
            " engine.tensor_parallel, or see who else uses the GPU"
        ),
    ),
    (
        re.compile(r"can't allocate memory|Cannot allocate memory|^MemoryError"),
        "the machine has too little memory: lower engine.kv_tokens_max or stop other programs",
    ),
    (
        re.compile(r"No space left on device"),
        "a disk is full: make room where the engine writes (its output, /tmp, /dev/shm)",
    ),
    (
        re.compile(
            r"address already in use|Port is already in use|is already in use", re.IGNORECASE
        ),
        "its port was taken by another program; the next start takes another one",
    ),
    (
        re.compile(r"context_length \(\d+\) is greater than the derived context_length \((\d+)\)"),
        "the model holds only {0} tokens: lower context_tokens_max to {0} or less",
    ),
    (
        re.compile(r"error: unrecognized arguments: (.+)"),
        "the engine does not know {0}: correct engine.extra_args",
    ),
    (
        re.compile(r"launch_server\.py: error: (.+)|sglang serve: error: (.+)"),
        "the engine refuses its flags ({0}): correct engine.extra_args",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([^']+)'"),
        (
            "the engine's environment lacks the package {0}: run `inferd engine install`, then"
            " `inferd engine doctor`"
        ),
    ),
    (
        re.compile(
            r"Cannot find any model weights|does not appear to have a file named"
            r"|SafetensorError|Error while deserializing header|Unrecognized model in"
            r"|Can't load (?:the configuration|tokenizer)|is not a local folder"
            r"|Repo id must|No such file or directory: '[^']*(?:config|tokenizer|model)"
        ),
        (
            "the model folder is incomplete or damaged: put config.json, the tokenizer and every"
            " .safetensors file into it"
        ),
    ),
    (
        re.compile(r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device"),
        'no usable GPU was found: set engine.device = "cpu", or run `inferd engine doctor`',
    ),
    (
        re.compile(r"invalid device ordinal"),
        "there are fewer GPUs than engine.tensor_parallel asks for: lower it",
    ),
    (
        re.compile(r"Subprocess (\w+) \(pid=\d+\) crashed with exit code"),
        "its process {0} died: see the lines before that in its output",
    ),
)


def explain(lines: Sequence[str]) -> str | None:
    """Why an engine failed, told from its last lines of output, with the next step; or None."""
    for pattern, sentence in _FAILURES:
        for line in reversed(lines):
            if match := pattern.search(line):
                found = next((group for group in match.groups() if group), "")
                return sentence.format(found.strip())
    return None


def explain_exit(status: int, lines: Sequence[str]) -> str:
    """Why an engine's process has ended, in one sentence. `status` as `EngineProcess.wait`."""
    if status == UNKNOWN_STATUS:
        ended = "the engine has ended (only the inferd that started it was told how)"
    elif status < 0:
        name = signal.Signals(-status).name
        ended = f"the engine was killed by {name}"
    else:
        ended = f"the engine exited with code {status}"
    if known := explain(lines):
        return f"{ended}: {known}"
    if status == -signal.SIGKILL:
        return f"{ended}, perhaps by the kernel for lack of memory (see `dmesg`)"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{ended}; its last words: {last}" if last else f"{ended} without a word"
