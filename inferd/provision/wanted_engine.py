"""The engine's environment, as far as the workers of a config need it before they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.errors import ConfigError, ProvisionError
from inferd.provision.check_files import check_files
from inferd.provision.environment import EngineEnvironment
from inferd.provision.recipes import SPLIT, Device

if TYPE_CHECKING:
    from inferd.config.load import LoadedConfig
    from inferd.config.version import Version


def engine_environment(loaded: LoadedConfig) -> EngineEnvironment:
    """The engine's environment; what it lacks is an error only if a worker is to run in it.

    Raises:
        ProvisionError, ConfigError: a worker could not be started.
    """
    environment = EngineEnvironment(loaded.resolve(loaded.config.engine.environment))
    versions = [version for model in loaded.config.models for version in model.versions]
    if any(version.weights and version.workers.count for version in versions):
        if problems := environment.problems(deep=False):
            raise ProvisionError("\n".join(problems))
        if problems := [*check_files(loaded), *_lacking_extras(versions, environment)]:
            raise ConfigError(problems)
    return environment


def _lacking_extras(versions: list[Version], environment: EngineEnvironment) -> list[str]:
    """What a version needs of the engine's environment beside what every engine has."""
    split = [one.engine.device for one in versions if one.split is not None]
    lacks = "a version's `split` needs more of the engine: run `inferd engine install --with split`"
    return [lacks] if any(SPLIT not in environment.extras(Device(one)) for one in split) else []
