"""Owns the way from a model name in a request to a pool, its limits and who may use it.

A name is a public name, an alias of one, an adapter's name, or any of them with `@version`, which
pins the version. Others go to the model's default version, or to one that takes them for their
prompt's length, their team, or while it has little to do. `update` replaces the whole table on
reload; a request that was routed before keeps the frozen route it got.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from inferd.config.schema import Model, Targets, Team
from inferd.config.version import Version
from inferd.errors import ModelNotAllowed, UnknownModel
from inferd.inference import Adapter, Caller, ModelKind, ModelLimits, adapter_of

SHOWN_NAME_MAX = 128
"""Characters of a client's unknown model name that an error message repeats."""

TTFT_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A version that takes requests from the default one, on these conditions."""

    version: str
    pool: str
    limits: ModelLimits
    prompt_tokens_min: int | None
    teams: frozenset[str]
    inflight_below: int | None
    shared_cache: bool


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
    adapter: Adapter | None = None
    longer_pool: str | None = None
    """Where a prompt goes that turns out to be too long for this pool."""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def widest(self) -> ModelLimits:
        """The limits of whoever may take it: what validation goes by before the prompt is sized."""
        return max(
            (self.limits, *(one.limits for one in self.alternatives if one.prompt_tokens_min)),
            key=lambda limits: limits.context_tokens_max,
        )


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
    parent: str | None = None
    """The model whose weights an adapter changes."""


def pool_id(model: str, version: str) -> str:
    return f"{model}@{version}"


class Pools:
    """The table of names. Synchronous and without time."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models: dict[str, Model] = {}
        self._routes: dict[str, Route] = {}
        self._parents: dict[str, Model] = {}
        self._ttft_timeouts: dict[str, float] = {}
        self.inflight_of: Callable[[str], int | None] = lambda _pool: None
        """Requests in flight in a pool; None while no worker of it is ready."""
        self.update(models)

    def update(self, models: Iterable[Model]) -> None:
        """Replace the table. The config is checked: names are unique, defaults exist."""
        self._models = {model.name: model for model in models}
        self._routes = {
            route.model: route for model in self._models.values() for route in _routes(model)
        }
        self._ttft_timeouts = {
            pool_id(model.name, version.version): version.split.ttft_timeout_s
            for model in self._models.values()
            for version in model.versions
            if version.split is not None
        }
        self._parents = {
            adapter.name: model
            for model in self._models.values()
            for version in model.versions
            for adapter in version.adapters
        }

    @property
    def ids(self) -> tuple[str, ...]:
        """Every pool of the config, by model and version."""
        return tuple(
            pool_id(model.name, version.version)
            for model in self._models.values()
            for version in model.versions
        )

    def targets_of(self, name: str) -> Targets | None:
        """What users of a model or adapter may expect; None for a public name that is gone."""
        model = self._models.get(name) or self._parents.get(name)
        return model.targets if model else None

    def ttft_timeout_of(self, pool: str) -> float:
        """Seconds from placement to the first output of a split pool, or of one that was."""
        return self._ttft_timeouts.get(pool, TTFT_TIMEOUT_S)

    def resolve(self, name: str, caller: Caller, team: Team) -> Route:
        """The route of a name. Raises UnknownModel (404) or ModelNotAllowed (403)."""
        route = self._routes.get(name)
        if route is None:
            raise UnknownModel(
                f"The model `{name[:SHOWN_NAME_MAX]}` does not exist or you do not have access to"
                " it.",
                param="model",
            )
        if not self._listed(route.limits.name, team.models):
            raise ModelNotAllowed(
                f"Team `{team.name}` may not use the model `{name}`. GET /v1/models lists what it"
                " may use.",
                param="model",
            )
        if not self._listed(route.limits.name, caller.models):
            raise ModelNotAllowed(
                f"This API key may not use the model `{name}`. GET /v1/models lists what it may"
                " use.",
                param="model",
            )
        return route

    def choose(self, route: Route, team: str, prompt_tokens: int) -> Route:
        """The route of a request whose prompt is about `prompt_tokens` long.

        By length first, for nobody else could answer; a team's or a quiet version only while one
        of its workers is ready.
        """
        long = [
            (one.prompt_tokens_min, one)
            for one in route.alternatives
            if one.prompt_tokens_min is not None and prompt_tokens >= one.prompt_tokens_min
        ]
        if long:
            return _moved(route, max(long, key=lambda found: found[0])[1])
        for one in route.alternatives:
            inflight = self.inflight_of(one.pool)
            if inflight is None:
                continue
            quiet = one.inflight_below is not None and inflight < one.inflight_below
            if team in one.teams or quiet:
                return _moved(route, one)
        return route

    def visible(self, caller: Caller, team: Team) -> list[ModelView]:
        """What the key may use, in the order of the config, adapters behind their model."""
        return [
            _view(model, self._routes[name])
            for model in self._models.values()
            for name in (model.name, *dict.fromkeys(_adapter_names(model)))
            if self._listed(name, team.models) and self._listed(name, caller.models)
        ]

    def pool_of(self, name: str) -> str | None:
        """The pool of a name, whoever asks; None for a name that is gone."""
        route = self._routes.get(name)
        return route.pool if route is not None else None

    def names(self, caller: Caller | None, team: Team | None) -> dict[str, str]:
        """Every name that a request may have as `model`, with the model's kind; None: of all."""
        return {
            name: route.limits.kind.value
            for name, route in self._routes.items()
            if (team is None or self._listed(route.limits.name, team.models))
            and (caller is None or self._listed(route.limits.name, caller.models))
        }

    def view(self, name: str, caller: Caller, team: Team) -> ModelView:
        """One model under the name asked for. Raises as `resolve` does."""
        route = self.resolve(name, caller, team)
        public = route.limits.name
        return _view(self._parents.get(public) or self._models[public], route)

    def _listed(self, public: str, allowed: Collection[str] | None) -> bool:
        """An allow-list names models by public name or alias; no list allows every model.

        Who may use a model may not use its adapters for that: they are models of their own.
        """
        if allowed is None or public in allowed:
            return True
        model = self._models.get(public)
        return model is not None and any(alias in allowed for alias in model.aliases)


def _routes(model: Model) -> Iterable[Route]:
    default = next(one for one in model.versions if one.version == model.default_version)
    others = tuple(
        _alternative(model, version)
        for version in model.versions
        if version.takes is not None and version is not default
    )
    longer = max(
        (one for one in others if one.prompt_tokens_min is not None),
        key=lambda one: one.limits.context_tokens_max,
        default=None,
    )
    for name in (model.name, *model.aliases):
        yield Route(
            pool_id(model.name, default.version),
            default.version,
            _limits(model, default),
            name,
            pinned=False,
            longer_pool=longer.pool if longer else None,
            alternatives=others,
            shared_cache=_shares(default),
        )
        for version in model.versions:
            yield _pinned(model, version, f"{name}@{version.version}")
    yield from _adapter_routes(model, default)


def _adapter_routes(model: Model, default: Version) -> Iterable[Route]:
    """To the default version if it has the adapter, else to the first one that has."""
    first: dict[str, tuple[Version, Adapter]] = {}
    for version in (default, *model.versions):
        for config in version.adapters:
            adapter = adapter_of(config.name, config.weights)
            first.setdefault(config.name, (version, adapter))
            yield _pinned(model, version, f"{config.name}@{version.version}", adapter)
    for name, (version, adapter) in first.items():
        yield Route(
            pool_id(model.name, version.version),
            version.version,
            _limits(model, version, name),
            name,
            pinned=False,
            adapter=adapter,
            shared_cache=_shares(version),
        )


def _pinned(model: Model, version: Version, name: str, adapter: Adapter | None = None) -> Route:
    return Route(
        pool_id(model.name, version.version),
        version.version,
        _limits(model, version, adapter.name if adapter else None),
        name,
        pinned=True,
        adapter=adapter,
        shared_cache=_shares(version),
    )


def _alternative(model: Model, version: Version) -> Alternative:
    takes = version.takes
    assert takes is not None, "only versions that take something"
    return Alternative(
        version=version.version,
        pool=pool_id(model.name, version.version),
        limits=_limits(model, version),
        prompt_tokens_min=takes.prompt_tokens_min,
        teams=frozenset(takes.teams),
        inflight_below=takes.inflight_below,
        shared_cache=_shares(version),
    )


def _moved(route: Route, to: Alternative) -> Route:
    longer = route.longer_pool if route.longer_pool != to.pool else None
    return Route(
        to.pool,
        to.version,
        to.limits,
        route.model,
        pinned=False,
        shared_cache=to.shared_cache,
        longer_pool=longer,
    )


def _shares(version: Version) -> bool:
    return version.cache_scope == "shared"


def _limits(model: Model, version: Version, adapter: str | None = None) -> ModelLimits:
    context = version.context_tokens_max or model.context_tokens_max
    return ModelLimits(
        name=adapter or model.name,
        context_tokens_max=context,
        output_tokens_max=min(model.output_tokens_max, context),
        choices_max=model.choices_max if version.split is None else 1,
        reasoning=model.reasoning,
        kind=ModelKind(model.kind),
        dimensions=model.dimensions,
        vocabulary_tokens=model.vocabulary_tokens,
        extras=None if model.extras is None else frozenset(model.extras),
        sampling=model.defaults.model_dump(exclude={"output_tokens"}, exclude_none=True),
        output_tokens_default=model.defaults.output_tokens,
    )


def _adapter_names(model: Model) -> Iterable[str]:
    return (adapter.name for version in model.versions for adapter in version.adapters)


def _view(model: Model, route: Route) -> ModelView:
    adapter = route.adapter.name if route.adapter else None
    versions = (
        one.version
        for one in model.versions
        if adapter is None or any(it.name == adapter for it in one.adapters)
    )
    return ModelView(
        id=route.model,
        version=route.version,
        pool=route.pool,
        kind=model.kind,
        context_tokens_max=route.widest.context_tokens_max,
        output_tokens_max=route.limits.output_tokens_max if model.kind == "chat" else 0,
        aliases=() if adapter else model.aliases,
        versions=tuple(versions),
        parent=model.name if adapter else None,
    )
