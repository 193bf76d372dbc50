"""The recipes that are shipped. Goal: every version exact, nothing pinned twice, torch named."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.provision.recipes import RECIPES, Device, Pin, Recipe
from tests.unit.provision.site_packages import recipes


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_recipe_pins_each_package_once(recipe: Recipe) -> None:
    names = [pin.name for pin in recipe.pins]
    assert len(names) == len(set(names)) > 100
    assert recipe.large <= set(names)
    assert recipe.pin("sglang").version == "0.5.23"
    assert {"pip", "torch", "transformers", "gguf", "safetensors"} <= set(names)


def test_both_recipes_convert_the_demo_model_with_the_same_versions() -> None:
    for name in ("transformers", "tokenizers", "gguf", "safetensors"):
        assert RECIPES[Device.CPU].pin(name) == RECIPES[Device.CUDA].pin(name)


def test_the_cpu_engine_has_nothing_of_cuda() -> None:
    names = {pin.name for pin in RECIPES[Device.CPU].pins}
    assert not {name for name in names if name.startswith(("nvidia-", "cuda-", "flashinfer"))}
    assert "sglang-kernel" not in names
    assert RECIPES[Device.CPU].pin("torch") == Pin("torch", "2.13.0")


def test_a_pin_allows_its_local_builds_only() -> None:
    pin = Pin("torch", "2.13.0")
    assert pin.allows("2.13.0")
    assert pin.allows("2.13.0+cpu")
    assert not pin.allows("2.13.0.1")
    assert not pin.allows("2.13.01")


def test_another_pin_is_another_digest(tmp_path: Path) -> None:
    before = recipes(tmp_path)[Device.CPU].digest
    assert recipes(tmp_path)[Device.CPU].digest == before
    assert recipes(tmp_path, "alpha==1.1\n")[Device.CPU].digest != before


@pytest.mark.parametrize(
    "line", ["alpha>=1.0", "alpha", "alpha==1.0; python_version > '3'", "A==1"]
)
def test_what_is_no_exact_pin_is_refused(tmp_path: Path, line: str) -> None:
    recipe = recipes(tmp_path, line)[Device.CPU]
    with pytest.raises(ValueError, match="not an exact pin"):
        _ = recipe.pins
