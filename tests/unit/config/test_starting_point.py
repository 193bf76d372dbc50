"""The first file. Goal: it is right for every machine, also when its alternative is chosen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferd.config.load import LoadedConfig, parse_config
from inferd.config.starting_point import Pace, first_file

H100 = "NVIDIA H100 80GB HBM3"
PACE = Pace(chunk_tokens=512, ttft_ms=60_100, tpot_ms=510, source=("First line;", "second line."))


def load(text: str) -> LoadedConfig:
    return parse_config(Path("inferd.toml"), text, {})


def test_without_a_gpu_the_demo_model_is_served_on_the_cpu() -> None:
    loaded = load(first_file((), 2, PACE, f"sha256:{'0' * 64}"))
    (model,) = loaded.config.models
    (version,) = model.versions
    assert (model.name, version.version) == ("smollm2-135m", "1")
    assert version.weights == ".inferd/models/SmolLM2-135M-Instruct"
    assert version.checksum == f"sha256:{'0' * 64}"
    assert (model.context_tokens_max, version.engine.kv_tokens_max) == (4_096, 16_384)
    assert (version.engine.device, version.engine.threads) == ("cpu", 1)
    assert (version.engine.running_max, version.engine.queued_max) == (16, 64)
    assert version.engine.tool_call_parser == "qwen25"
    assert version.engine.chunked_prefill_tokens == 512
    assert (model.targets.ttft_ms, model.targets.tpot_ms) == (60_100, 510)
    assert [team.name for team in loaded.config.teams] == ["demo"]


def test_the_comments_say_where_the_figures_are_from() -> None:
    assert "# First line;\n# second line.\n[models.targets]" in first_file((), 2, PACE)
    assert "# Not measured" in first_file((), 2)


@pytest.mark.parametrize("gpus", [1, 4, 8, 16])
def test_with_gpus_an_8b_is_on_each(gpus: int) -> None:
    text = first_file((H100,) * gpus, 96)
    (model,) = load(text).config.models
    engine = model.versions[0].engine
    assert model.versions[0].workers.count == gpus
    assert (engine.device, engine.tensor_parallel, engine.chunked_prefill_tokens) == (
        "cuda",
        1,
        1_024,
    )
    assert (model.targets.ttft_ms, model.targets.tpot_ms) == (800, 40)
    assert f"{gpus} x {H100}" in text
    assert ("70B" in text) == (gpus >= 8)


@pytest.mark.parametrize("gpus", [8, 16])
def test_the_70b_is_right_too_when_it_is_chosen(gpus: int) -> None:
    text = first_file((H100,) * gpus, 96)
    above, _, rest = text.partition("# Instead of the 8B")
    large, _, team = rest.partition("\n\n")
    uncommented = re.sub(r"^# ?", "", large.partition("\n")[2], flags=re.MULTILINE)
    head = above.partition("[[models]]")[0]
    (model,) = load(f"{head}{uncommented}\n{team}").config.models
    engine = model.versions[0].engine
    assert model.name == "chat-70b"
    assert (engine.tensor_parallel, engine.chunked_prefill_tokens) == (8, 512)
    assert model.versions[0].workers.count == gpus // 8
    assert (model.targets.ttft_ms, model.targets.tpot_ms) == (800, 40)


@pytest.mark.parametrize("gpus", [0, 8])
def test_every_commented_key_may_be_taken_as_it_is(gpus: int) -> None:
    text = first_file((H100,) * gpus, 2)
    head, _, team = text.partition("[[teams]]")
    load(f"{head}[[teams]]{re.sub(r'^# ', '', team, flags=re.MULTILINE)}")


def test_different_gpus_are_counted_by_name() -> None:
    assert "1 x A, 2 x B: an 8B" in first_file(("A", "B", "B"), 8)


@pytest.mark.parametrize("gpus", [0, 8])
def test_the_file_reads_well(gpus: int) -> None:
    text = first_file((H100,) * gpus, 2)
    behind = [line.index("# ", 3) for line in text.splitlines() if re.search(r"\S  +# ", line)]
    assert set(behind) == {35}
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    assert text.endswith("\n")
    assert "\n\n\n" not in text
