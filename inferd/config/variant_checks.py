"""What must hold of a version's adapters, sides and engine flags: pure, part of `checks`."""

from __future__ import annotations

from collections.abc import Iterator

from inferd.config.engine_arguments import refused
from inferd.config.locate import KeyPath
from inferd.config.problems import Problem, did_you_mean
from inferd.config.schema import Config, Model
from inferd.config.version import Version


def variant_problems(path: KeyPath, model: Model, version: Version) -> Iterator[Problem]:
    """Of one version."""
    for number, reason in refused(version.engine.extra_args):
        yield Problem((*path, "engine", "extra_args", number), reason)
    yield from _adapters(path, model, version)
    yield from _taking(path, model, version)
    yield from _sides(path, model, version)


def _adapters(path: KeyPath, model: Model, version: Version) -> Iterator[Problem]:
    lora = version.engine.lora
    if version.adapters and lora is None:
        unset = "needs engine.lora, which has the engine keep adapters"
        yield Problem((*path, "adapters"), unset, unless=path)
    if version.adapters and version.attached:
        others = "needs workers that inferd starts: an attached one may not have them"
        yield Problem((*path, "adapters"), others, unless=path)
    if (version.adapters or lora) and model.kind != "chat":
        yield Problem((*path, "adapters"), f'is for models of kind "chat", not "{model.kind}"')
    if lora and lora.loaded_max is not None and lora.loaded_max < lora.running_max:
        yield Problem(
            (*path, "engine", "lora", "loaded_max"),
            f"{lora.loaded_max} is less than running_max, {lora.running_max}",
            unless=(*path, "engine", "lora"),
        )
    names = [adapter.name for adapter in version.adapters]
    for number, name in enumerate(names):
        if (first := names.index(name)) < number:
            at = (*path, "adapters", number, "name")
            yield Problem(at, f'"{name}" is already adapters[{first}] of this version')


def _taking(path: KeyPath, model: Model, version: Version) -> Iterator[Problem]:
    takes = version.takes
    if takes is None:
        return
    if version.version == model.default_version:
        every = "is the default version, which takes every request anyway"
        yield Problem((*path, "takes"), every, unless=path)
    if takes.prompt_tokens_min is None and not takes.teams and takes.inflight_below is None:
        none = "takes nothing: set prompt_tokens_min, teams or inflight_below"
        yield Problem((*path, "takes"), none, unless=(*path, "takes"))
    longest = version.context_tokens_max or model.context_tokens_max
    if takes.prompt_tokens_min is not None and takes.prompt_tokens_min >= longest:
        yield Problem(
            (*path, "takes", "prompt_tokens_min"),
            f"{takes.prompt_tokens_min:,} leaves no room in context_tokens_max, {longest:,}",
        )


def _sides(path: KeyPath, model: Model, version: Version) -> Iterator[Problem]:
    if version.split is None:
        return
    if version.weights is None or version.attached:
        here = "needs weights, and no attached workers: inferd joins workers that it starts"
        yield Problem((*path, "split"), here, unless=path)
    if model.kind != "chat":
        yield Problem((*path, "split"), f'is for models of kind "chat", not "{model.kind}"')
    if version.adapters:
        both = "cannot be had together with split"
        yield Problem((*path, "adapters"), both, unless=path)


def adapter_names(config: Config) -> Iterator[Problem]:
    """An adapter's name is its own, but for the same adapter on another version of its model."""
    owner: dict[str, str] = {}
    for model in config.models:
        owner.setdefault(model.name, "a model's")
        for alias in model.aliases:
            owner.setdefault(alias, "an alias's")
    homes: dict[str, str] = {}
    for index, model in enumerate(config.models):
        for number, version in enumerate(model.versions):
            for place, adapter in enumerate(version.adapters):
                path = ("models", index, "versions", number, "adapters", place, "name")
                if adapter.name in owner:
                    yield Problem(path, f'"{adapter.name}" is already {owner[adapter.name]} name')
                elif homes.setdefault(adapter.name, model.name) != model.name:
                    of = homes[adapter.name]
                    yield Problem(path, f'"{adapter.name}" is already an adapter of {of}')


def taking_teams(config: Config) -> Iterator[Problem]:
    """A version takes the requests of teams that exist."""
    teams = [team.name for team in config.teams]
    for index, model in enumerate(config.models):
        for number, version in enumerate(model.versions):
            for place, name in enumerate(version.takes.teams if version.takes else ()):
                if name not in teams:
                    path = ("models", index, "versions", number, "takes", "teams", place)
                    wrong = f'no team is called "{name}"' + did_you_mean(name, teams)
                    yield Problem(path, wrong)
