"""Writes tiny LoRA adapters for the demo model: seeded noise, enough to change every answer."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

HIDDEN, HEADS, KV_HEADS, HEAD = 576, 9, 3, 64
RANK = 4
ALPHA = 64
LORA = '[models.versions.engine.lora]\nrank_max = 8\ntargets = ["q_proj", "v_proj"]\n'


def adapters_table(**adapters: str) -> str:
    """Of a version in inferd.toml: folders of weights by public name."""
    tables = [
        f'[[models.versions.adapters]]\nname = "{name}"\nweights = "{weights}"\n'
        for name, weights in adapters.items()
    ]
    return "\n".join([LORA, *tables])


def make_adapter(folder: Path, seed: int, layers: int = 2) -> Path:
    """A PEFT folder that changes q_proj and v_proj of the first `layers` layers."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "demo",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng = random.Random(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for layer in range(layers):
        for module, out in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for side, shape in (("A", (RANK, HIDDEN)), ("B", (out, RANK))):
                count = shape[0] * shape[1]
                values = struct.pack(f"<{count}f", *(rng.gauss(0.0, 0.3) for _ in range(count)))
                header[f"{name}.lora_{side}.weight"] = {
                    "dtype": "F32",
                    "shape": list(shape),
                    "data_offsets": [len(data), len(data) + len(values)],
                }
                data += values
    head = json.dumps(header).encode()
    weights = struct.pack("<Q", len(head)) + head + bytes(data)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder
