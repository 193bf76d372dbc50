"""Flags of the engine that `extra_args` may not hold, for inferd gives them itself. Pure.

The engine takes an abbreviated flag for the whole one, so the beginning of such a flag counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

OWNED: Final = {
    "--admin-api-key": "each worker has a key of its own",
    "--api-key": "each worker has a key of its own",
    "--config": "inferd hands over the key in it",
    "--host": "workers listen on the loopback address alone",
    "--port": "each worker has a free one",
    "--model-path": "write `weights`",
    "--served-model-name": "write the model's `name`",
    "--device": "write `engine.device`",
    "--context-length": "write `context_tokens_max`",
    "--max-running-requests": "write `engine.running_max`",
    "--max-queued-requests": "write `engine.queued_max`",
    "--chunked-prefill-size": "write `engine.chunked_prefill_tokens`",
    "--max-total-tokens": "write `engine.kv_tokens_max`",
    "--stream-interval": "write `engine.stream_interval`",
    "--kv-cache-dtype": "write `engine.kv_dtype`",
    "--quantization": "write `engine.quantization`",
    "--is-embedding": 'write `kind = "embedding"`',
    "--enable-lora": "write `engine.lora`",
    "--lora-paths": "write `adapters`",
    "--lora-target-modules": "write `engine.lora.targets`",
    "--max-lora-rank": "write `engine.lora.rank_max`",
    "--max-loras-per-batch": "write `engine.lora.running_max`",
    "--max-loaded-loras": "write `engine.lora.loaded_max`",
    "--disaggregation-mode": "write `split`",
    "--disaggregation-bootstrap-port": "each worker has a free one",
    "--disaggregation-transfer-backend": "write `split.transfer`",
    "--default-priority-value": "inferd's priorities count from it",
    "--schedule-low-priority-values-first": "inferd's priorities are the higher the sooner",
}
SHORTEST: Final = len("--hos")
"""A shorter beginning is that of several flags, which the engine refuses itself."""


def refused(arguments: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Position and reason of each argument that inferd gives itself."""
    for number, argument in enumerate(arguments):
        word = argument.partition("=")[0].replace("_", "-")
        if not word.startswith("--") or len(word) < SHORTEST:
            continue
        for flag, instead in OWNED.items():
            if flag.startswith(word):
                yield number, f"{word} is inferd's to give: {instead}"
                break
