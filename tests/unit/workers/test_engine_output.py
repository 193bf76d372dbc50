from __future__ import annotations

import signal

import pytest

from inferd.workers.engine_output import (
    explain,
    explain_exit,
    is_request_line,
    phase_of,
    tells_of_death,
)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[2026-11-30 23:00:26] server_args={'model_path': 'm'}", "starting its processes"),
        ("[2026-11-30 23:01:02] Load weight begin. avail mem=21.05 GB", "loading weights"),
        ("[2026-11-30 23:01:03] Load weight end. elapsed=0.29 s", "weights loaded"),
        ("[2026-11-30 23:01:05] KV Cache is allocated. #tokens: 16384", "KV cache allocated"),
        ("[2026-11-30 23:01:05] Capture cuda graph begin. This can take", "capturing graphs"),
        ("[2026-11-30 23:01:05] Capture cuda graph end. Time elapsed", "graphs captured"),
        ("[2026-11-30 23:01:05] max_total_num_tokens=16384, chunked", "starting its server"),
        ("[2026-11-30 23:01:06] The server is fired up and ready to roll!", "listening"),
        ("  warnings.warn(", None),
    ],
)
def test_phases_of_a_real_start(line: str, phase: str | None) -> None:
    assert phase_of(line) == phase


def test_request_lines_are_told_apart() -> None:
    assert is_request_line('INFO:     127.0.0.1:5 - "GET /ready HTTP/1.1" 503 Service Unavailable')
    assert not is_request_line("Load weight begin. avail mem=21.05 GB")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "lower engine.kv_tok"),
        ("RuntimeError: Not enough memory. Please try to increase --mem", "lower engine.kv_tok"),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: you", "the machine has too"),
        ("OSError: [Errno 28] No space left on device", "a disk is full"),
        ("[Errno 98] address already in use", "its port was taken"),
        ("[Errno 98] error while attempting to bind on ('::', 1): Address already in use", "port"),
        (
            "context_length (9999) is greater than the derived context_length (8192).",
            "the model holds only 8192 tokens: lower context_tokens_max to 8192 or less",
        ),
        (
            "launch_server.py: error: unrecognized arguments: --tensr-parallel 8",
            "the engine does not know --tensr-parallel 8: correct engine.extra_args",
        ),
        ("sglang serve: error: argument --dtype: invalid choice: 'x'", "refuses its flags (arg"),
        ("ModuleNotFoundError: No module named 'vllm'", "lacks the package vllm"),
        ("RuntimeError: Cannot find any model weights with `model`", "model folder is incomplete"),
        ("OSError: m does not appear to have a file named config.json", "model folder is incom"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'm/config.json'", "incomplete"),
        ("SafetensorError: Error while deserializing header: incomplete metadata", "damaged"),
        ("RuntimeError: No CUDA GPUs are available", 'set engine.device = "cpu"'),
        ("RuntimeError: CUDA error: invalid device ordinal", "fewer GPUs than engine.tensor_par"),
    ],
)
def test_failures_are_told_in_plain_words_with_the_next_step(line: str, says: str) -> None:
    told = explain(["starting", line, "Traceback goes on"])
    assert told is not None
    assert says in told


def test_harmless_lines_of_a_real_start_are_no_failure() -> None:
    assert (
        explain(
            [
                "Ignore import error when loading sglang.srt.models.inkling: No module named 'cut'",
                "post-warmup freeze_gc failed",
                "ConnectionRefusedError: [Errno 111] Connection refused",
                "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
            ]
        )
        is None
    )


def test_an_exit_is_explained_by_what_it_said() -> None:
    lines = ["ModuleNotFoundError: No module named 'torch'", ""]
    assert explain_exit(1, lines).startswith(
        "the engine exited with code 1: the engine's environment lacks the package torch"
    )
    assert explain_exit(3, ["some words", " "]) == (
        "the engine exited with code 3; its last words: some words"
    )
    assert explain_exit(0, []) == "the engine exited with code 0 without a word"


def test_a_killed_engine_names_the_signal() -> None:
    told = explain_exit(-signal.SIGKILL, ["all well"])
    assert told.startswith("the engine was killed by SIGKILL, perhaps by the kernel for lack of")
    assert explain_exit(-signal.SIGSEGV, ["x"]) == (
        "the engine was killed by SIGSEGV; its last words: x"
    )


def test_a_dead_child_is_told_by_the_engine_not_by_a_prompt() -> None:
    line = "[2026-11-30 23:44:03] Subprocess scheduler_0 (pid=20164) crashed with exit code -9. T"
    assert tells_of_death(line)
    assert explain([line]) == (
        "its process scheduler_0 died: see the lines before that in its output"
    )
    assert not tells_of_death(f"[2026-11-30 23:44:03] Receive: text='{line}'")
    assert not tells_of_death("[2026-11-30 23:01:11] SIGTERM received. signum=None")
