"""Converts a GGUF file of the llama architecture into a Hugging Face model folder.

A program of its own: it runs in the engine's python, where torch, gguf, safetensors and
transformers are, and is never imported by the gateway (`inferd.provision.model` starts it).
Invariant: the same file gives the same bytes, so that the result can be held to checksums.
Usage: python convert_gguf.py [--generation JSON] FILE.gguf FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ARCHITECTURE = "llama"

# GGUF's name of a tensor in a block -> its name in a Hugging Face layer.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class Unconvertible(Exception):
    """The file is not what this converter understands; nothing has been written."""


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        """The value of `key`; Unconvertible when the file lacks it."""
        value = self.get(key)
        if value is None:
            message = f"the file has no {key}"
            raise Unconvertible(message)
        return value

    def llama(self, key: str) -> Any:
        return self.need(f"{ARCHITECTURE}.{key}")


def tensor_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; Unconvertible for one this converter lacks."""
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in LAYER_TENSORS:
            return f"model.layers.{layer}.{LAYER_TENSORS[part]}.weight"
    message = f"unknown tensor {name}"
    raise Unconvertible(message)


def unpermuted(weights: Any, heads: int) -> Any:
    """Rows of a q or k projection in Hugging Face's order.

    llama.cpp stores each head's rows as rotary pairs (0, half), (1, half + 1), ...;
    Hugging Face wants the first halves of all pairs, then the second halves.
    """
    rows = weights.shape[0]
    pairs = weights.reshape(heads, rows // heads // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def weights_of(reader: Any, metadata: Metadata) -> dict[str, Any]:
    """Every tensor, dequantized, in bf16, under its Hugging Face name."""
    import numpy
    import torch
    from gguf.quants import dequantize

    heads = {
        "attn_q": int(metadata.llama("attention.head_count")),
        "attn_k": int(metadata.llama("attention.head_count_kv")),
    }
    weights = {}
    for tensor in reader.tensors:
        name = tensor_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = unpermuted(values, heads[part])
        contiguous = numpy.array(values, order="C")
        weights[name] = torch.from_numpy(contiguous).to(torch.bfloat16)
    return weights


def config_of(metadata: Metadata, vocabulary: int, *, tied: bool) -> dict[str, Any]:
    """config.json of the model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata.llama("embedding_length"),
        "intermediate_size": metadata.llama("feed_forward_length"),
        "num_hidden_layers": metadata.llama("block_count"),
        "num_attention_heads": metadata.llama("attention.head_count"),
        "num_key_value_heads": metadata.llama("attention.head_count_kv"),
        "max_position_embeddings": metadata.llama("context_length"),
        "rms_norm_eps": shortest(metadata.llama("attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(metadata.get(f"{ARCHITECTURE}.rope.freq_base", 10_000.0)),
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **special_tokens(metadata),
    }


def shortest(value: float) -> float:
    """A 32-bit value as people write it: 1e-05, where its exact value is 9.99999974e-06."""
    import numpy

    return float(str(numpy.float32(value)))


def special_tokens(metadata: Metadata) -> dict[str, Any]:
    bos = metadata.need("tokenizer.ggml.bos_token_id")
    eos = metadata.need("tokenizer.ggml.eos_token_id")
    return {
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id", eos),
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def forget_origin(path: Path) -> None:
    """Takes out where and how the tokenizer was loaded, which differs from run to run."""
    document = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {key: document[key] for key in document if "local" not in key})


def convert(source: Path, folder: Path, generation: dict[str, Any]) -> None:
    """Writes `folder` (which exists and is empty) from `source`.

    `generation` adds to generation_config.json, where an engine finds its default sampling.
    Raises Unconvertible for a file of another architecture or without a chat template.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(source)
    metadata = Metadata(reader)
    architecture = metadata.need("general.architecture")
    if architecture != ARCHITECTURE:
        message = f"the file's architecture is {architecture}, not {ARCHITECTURE}"
        raise Unconvertible(message)
    weights = weights_of(reader, metadata)
    vocabulary = weights["model.embed_tokens.weight"].shape[0]
    config = config_of(metadata, vocabulary, tied="lm_head.weight" not in weights)

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if not tokenizer.chat_template:
        message = "the file has no chat template"
        raise Unconvertible(message)
    weights_file = folder / "model.safetensors"
    save_file(weights, weights_file, metadata={"format": "pt"})
    weights_file.chmod(0o644)  # made for its owner alone; a worker may run as someone else
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {**special_tokens(metadata), **generation})
    tokenizer.save_pretrained(folder)
    forget_origin(folder / "tokenizer_config.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generation", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    try:
        convert(arguments.source, arguments.folder, arguments.generation)
    except Unconvertible as error:
        sys.stderr.write(f"cannot convert {arguments.source}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
