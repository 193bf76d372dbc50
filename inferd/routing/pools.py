"""Owns the way from a model name in a request to a pool, its limits and who may use it.

A name is a public name, an alias of one, or either with `@version`, which pins the version. Public
names and aliases go to the model's default version. `update` replaces the whole table on reload;
a request that was routed before keeps the frozen route it got.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from inferd.config.schema import Model, Team
from inferd.errors import ModelNotAllowed, UnknownModel
from inferd.inference import Caller, ModelKind, ModelLimits

SHOWN_NAME_MAX = 128
"""Characters of a client's unknown model name that an error message repeats."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request for a model name goes."""

    pool: str
    """`model@version`."""
    version: str
    limits: ModelLimits
    model: str
    """The name as the client wrote it, to be echoed; `limits.name` is the public one."""
    pinned: bool
    """The client asked for this version: a change of the default does not move it."""
    shared_cache: bool = False
    """Teams find each other's prompts in the cache."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as /v1/models shows it."""

    id: str
    version: str
    pool: str
    kind: str
    context_tokens_max: int
    output_tokens_max: int
    aliases: tuple[str, ...]
    versions: tuple[str, ...]
    """Every version that `id@version` may name."""


def pool_id(model: str, version: str) -> str:
    return f"{model}@{version}"


class Pools:
    """The table of names. Synchronous and without time."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models: dict[str, Model] = {}
        self._routes: dict[str, Route] = {}
        self.update(models)

    def update(self, models: Iterable[Model]) -> None:
        """Replace the table. The config is checked: names are unique, defaults exist."""
        self._models = {model.name: model for model in models}
        self._routes = {
            route.model: route for model in self._models.values() for route in _routes(model)
        }

    @property
    def ids(self) -> tuple[str, ...]:
        """Every pool of the config, by model and version."""
        return tuple(
            pool_id(model.name, version.version)
            for model in self._models.values()
            for version in model.versions
        )

    def resolve(self, name: str, caller: Caller, team: Team) -> Route:
        """The route of a name. Raises UnknownModel (404) or ModelNotAllowed (403)."""
        route = self._routes.get(name)
        if route is None:
            raise UnknownModel(
                f"The model `{name[:SHOWN_NAME_MAX]}` does not exist or you do not have access to"
                " it.",
                param="model",
            )
        model = self._models[route.limits.name]
        if not _listed(model, team.models):
            raise ModelNotAllowed(
                f"Team `{team.name}` may not use the model `{name}`. GET /v1/models lists what it"
                " may use.",
                param="model",
            )
        if not _listed(model, caller.models):
            raise ModelNotAllowed(
                f"This API key may not use the model `{name}`. GET /v1/models lists what it may"
                " use.",
                param="model",
            )
        return route

    def visible(self, caller: Caller, team: Team) -> list[ModelView]:
        """What the key may use, in the order of the config."""
        return [
            _view(model, model.name, model.default_version)
            for model in self._models.values()
            if _listed(model, team.models) and _listed(model, caller.models)
        ]

    def view(self, name: str, caller: Caller, team: Team) -> ModelView:
        """One model under the name asked for. Raises as `resolve` does."""
        route = self.resolve(name, caller, team)
        return _view(self._models[route.limits.name], route.model, route.version)


def _routes(model: Model) -> Iterable[Route]:
    limits = ModelLimits(
        name=model.name,
        context_tokens_max=model.context_tokens_max,
        output_tokens_max=model.output_tokens_max,
        choices_max=model.choices_max,
        reasoning=model.reasoning,
        kind=ModelKind(model.kind),
        dimensions=model.dimensions,
        vocabulary_tokens=model.vocabulary_tokens,
        extras=None if model.extras is None else frozenset(model.extras),
        sampling=model.defaults.model_dump(exclude={"output_tokens"}, exclude_none=True),
        output_tokens_default=model.defaults.output_tokens,
    )
    for version in model.versions:
        pool = pool_id(model.name, version.version)
        shared = version.cache_scope == "shared"
        for name in (model.name, *model.aliases):
            pinned = f"{name}@{version.version}"
            yield Route(pool, version.version, limits, pinned, pinned=True, shared_cache=shared)
            if version.version == model.default_version:
                yield Route(pool, version.version, limits, name, pinned=False, shared_cache=shared)


def _listed(model: Model, allowed: Collection[str] | None) -> bool:
    """An allow-list names models by public name or alias; no list allows every model."""
    if allowed is None or model.name in allowed:
        return True
    return any(alias in allowed for alias in model.aliases)


def _view(model: Model, name: str, version: str) -> ModelView:
    return ModelView(
        id=name,
        version=version,
        pool=pool_id(model.name, version),
        kind=model.kind,
        context_tokens_max=model.context_tokens_max,
        output_tokens_max=model.output_tokens_max if model.kind == "chat" else 0,
        aliases=model.aliases,
        versions=tuple(one.version for one in model.versions),
    )
