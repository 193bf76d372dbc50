"""Model folders that a configuration names. Goal: what is not whole is told, with the next step."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from inferd.config.load import load_config
from inferd.provision.check_files import check_files
from inferd.provision.model_folder import write_manifest
from tests.fakes.lora_folder import make_adapter

TEXT = """\
[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 1_024

[[models.versions]]
version = "1"
weights = "chat"
"""


def safetensors(values: int = 4) -> bytes:
    entry = {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model folder; `problems` checks it."""
    made = tmp_path / "chat"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"max_position_embeddings": 8_192}))
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes(safetensors())
    return made


def problems(folder: Path, text: str = TEXT, *, checksums: bool = False) -> list[str]:
    file = folder.parent / "inferd.toml"
    file.write_text(text)
    found = check_files(load_config(file, {}), checksums=checksums)
    assert all(line.startswith(f"{file}:") for line in found)
    return [line.removeprefix(f"{file}:") for line in found]


def test_a_whole_folder_is_right(folder: Path) -> None:
    assert problems(folder) == []


def test_a_version_without_weights_names_no_folder(folder: Path) -> None:
    text = TEXT.replace('weights = "chat"', 'attached = [{ url = "http://h:1" }]')
    assert problems(folder, text) == []


def test_a_missing_folder_is_told_with_its_line_and_the_next_step(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    assert problems(folder) == [
        (
            f"9: models[0].versions[0].weights: {folder} does not exist: put the model there;"
            " `inferd engine install` makes the demo model"
        )
    ]
    folder.write_text("")
    assert "is not a folder" in problems(folder)[0]


def test_a_folder_that_lacks_everything_is_told_all_of_it(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    told = "\n".join(problems(folder))
    assert "config.json is missing" in told
    assert "the tokenizer is missing" in told
    assert "the weights are missing (*.safetensors)" in told
    assert told.count("copy the whole model folder") == 3


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_each_part_is_needed(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert len(problems(folder)) == 1


def test_every_shard_of_an_index_is_needed(folder: Path) -> None:
    shards = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {"weight_map": {f"layer.{n}": shard for n, shard in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for shard in shards:
        (folder / shard).write_bytes(safetensors())
    assert problems(folder) == []
    (folder / shards[1]).unlink()
    (told,) = problems(folder)
    assert f"{shards[1]} is missing" in told


@pytest.mark.parametrize(
    "content",
    [
        safetensors()[:-1],
        safetensors() + b"x",
        safetensors()[:20],
        b"1234",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 3) + b"{x}",
        struct.pack("<Q", 33) + b'{"a": {"data_offsets": [0, null]}}'[:33],
    ],
)
def test_a_file_that_was_cut_short_is_told(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert problems(folder) == [
        (
            f"9: models[0].versions[0].weights: {folder}/model.safetensors is cut short or"
            " damaged: copy it again"
        )
    ]


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 2_048}, 2_048),
        ({"text_config": {"max_position_embeddings": 1_024}}, 1_024),
        ({"max_position_embeddings": 1_024, "rope_scaling": {"factor": 2.0}}, 2_048),
        ({"max_position_embeddings": 1_024, "rope_parameters": {"rope_theta": 1.0}}, 1_024),
    ],
)
def test_a_context_longer_than_the_model_was_made_for(
    folder: Path, config: dict[str, object], limit: int
) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    (told,) = problems(folder)
    assert f"reads at most {limit:,} tokens: lower context_tokens_max, 4,096" in told
    allowed = TEXT + 'engine = { env = { SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN = "1" } }\n'
    assert problems(folder, allowed) == []


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_position_embeddings": "many"},
        {"max_position_embeddings": 1_024, "rope_scaling": {"factor": 4}},
        {"max_position_embeddings": 4_096, "rope_scaling": {"factor": 0.5}},
    ],
)
def test_a_context_that_fits_or_is_not_known(folder: Path, config: dict[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    assert problems(folder) == []


def test_checksums_are_compared_on_request(folder: Path) -> None:
    checksum = write_manifest(folder).checksum
    text = TEXT + f'checksum = "{checksum}"\n'
    assert problems(folder, text, checksums=True) == []
    (folder / "tokenizer.json").write_text("[]")
    assert problems(folder, text) == []
    (told,) = problems(folder, text, checksums=True)
    assert "tokenizer.json has other contents than recorded" in told
    assert problems(folder, TEXT, checksums=True) == []


ADAPTED = (
    TEXT
    + """\
engine = { lora = { rank_max = 4, targets = ["q_proj", "v_proj"] } }

[[models.versions.adapters]]
name = "sql"
weights = "sql"
"""
)


def test_an_adapter_is_looked_at_as_the_engine_will(folder: Path) -> None:
    adapter = make_adapter(folder.with_name("sql"), seed=1)
    assert problems(folder, ADAPTED) == []
    config = adapter / "adapter_config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "r": 8, "target_modules": ["q_proj", "up_proj"]}))
    rank, modules = problems(folder, ADAPTED)
    assert rank.startswith("14: models[0].versions[0].adapters[0].weights: ")
    assert rank.endswith("has rank 8: raise engine.lora.rank_max, 4")
    assert modules.endswith("changes up_proj: add it to engine.lora.targets")
    config.write_text(json.dumps(told))
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "is missing or cut short" in problems(folder, ADAPTED)[0]
    config.unlink()
    assert "adapter_config.json cannot be read" in problems(folder, ADAPTED)[0]
