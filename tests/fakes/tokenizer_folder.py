"""A model folder with a tokenizer small enough to be counted by hand: bytes, and three merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('system comes first') }}{% endif %}"
    "<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)


def printable() -> list[str]:
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return [*map(chr, kept), *(chr(256 + at) for at in range(len(others)))]


def described(**changes: Any) -> dict[str, Any]:
    """`Ġ` is a space: "he", "ll" and " he" are tokens beside the bytes."""
    merges = ["h e", "l l", "Ġ he"]
    vocabulary = [*printable(), "he", "ll", "Ġhe"]
    return {
        "added_tokens": [{"content": "<|start|>"}, {"content": "<|end|>"}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": merges,
        },
        **changes,
    }


def make(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(orjson.dumps(described(**changes)))
    settings = {"chat_template": TEMPLATE, "bos_token": {"content": "<|start|>"}}
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(settings))
    return folder
