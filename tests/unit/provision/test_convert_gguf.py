"""The converter's own decisions. What it makes of a real file is checked when one is installed."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.provision.convert_gguf import Metadata, Unconvertible, special_tokens, tensor_name


class Reader:
    """As much of gguf's reader as metadata needs."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.fields = {key: Field(value) for key, value in values.items()}


class Field:
    def __init__(self, value: Any) -> None:
        self._value = value

    def contents(self) -> Any:
        return self._value


@pytest.mark.parametrize(
    ("gguf", "hugging_face"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
        ("blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
    ],
)
def test_tensors_get_their_hugging_face_names(gguf: str, hugging_face: str) -> None:
    assert tensor_name(gguf) == hugging_face


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight", ""]
)
def test_a_tensor_it_does_not_know_is_refused_by_name(name: str) -> None:
    with pytest.raises(Unconvertible, match=f"unknown tensor {name}"):
        tensor_name(name)


def test_special_tokens_pad_with_the_end_if_nothing_else_is_said() -> None:
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    assert special_tokens(Metadata(Reader(ids)))["pad_token_id"] == 2
    ids["tokenizer.ggml.padding_token_id"] = 0
    assert special_tokens(Metadata(Reader(ids)))["pad_token_id"] == 0


def test_what_the_file_must_say_and_does_not_is_named() -> None:
    with pytest.raises(Unconvertible, match=r"no llama\.block_count"):
        Metadata(Reader({})).llama("block_count")
    assert Metadata(Reader({})).get("any", 3) == 3
