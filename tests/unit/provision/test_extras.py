"""Extras of an engine's environment. Goal: what is there is kept in repair, and nothing else."""

from __future__ import annotations

from pathlib import Path

from inferd.provision.environment import EngineEnvironment
from inferd.provision.recipes import RECIPES, SPLIT, Device, extra_pins
from tests.unit.provision.site_packages import install, recipes


def test_an_extra_adds_its_packages_and_keeps_the_recipes_name() -> None:
    recipe = RECIPES[Device.CPU]
    more = recipe.including(frozenset({SPLIT}))
    assert set(more.pins) - set(recipe.pins) == set(extra_pins(Device.CPU, SPLIT))
    assert more.digest == recipe.digest
    assert more.including(frozenset()).pins == more.pins


def test_an_extra_that_is_there_belongs_to_the_environment(tmp_path: Path) -> None:
    environment = EngineEnvironment(tmp_path / "engine", recipes(tmp_path))
    site_packages = environment.directory / "lib" / "python3.12" / "site-packages"
    assert environment.extras(Device.CPU) == frozenset()
    assert environment.recipe(Device.CPU, frozenset({SPLIT})).extras == {SPLIT}
    (pin,) = extra_pins(Device.CPU, SPLIT)
    install(site_packages, pin.name.replace("-", "_"), pin.version, {"mooncake/__init__.py": ""})
    assert environment.extras(Device.CPU) == {SPLIT}
    assert pin in environment.recipe(Device.CPU).pins
