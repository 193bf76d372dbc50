"""What must hold between the keys of inferd.toml: pure, all problems at once.

A name or a limit that matches nothing is a problem, so that nothing in the file is without effect.
Each check yields problems of one kind; `check` is their list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from urllib.parse import urlsplit

from inferd.config.address import Address, parse_address
from inferd.config.limits import PAIRS, Limited, LimitsOnModel
from inferd.config.locate import KeyPath, show_path
from inferd.config.money import check_budget, check_prices
from inferd.config.problems import Problem, did_you_mean
from inferd.config.schema import Config, Model, Team
from inferd.config.variant_checks import adapter_names, taking_teams, variant_problems
from inferd.config.version import Version
from inferd.inference import SYSTEM_TEAM


def check(config: Config, environ: Mapping[str, str]) -> list[Problem]:
    """Every problem between keys. `environ` is where `key_env` is looked up."""
    return list(
        chain(
            _listeners(config),
            _folders(config),
            _deadlines(config),
            _files(config, environ),
            _model_names(config),
            adapter_names(config),
            taking_teams(config),
            chain.from_iterable(
                _model(("models", index), model) for index, model in enumerate(config.models)
            ),
            _attached(config, environ),
            _team_names(config),
            chain.from_iterable(
                _team(("teams", index), team, config) for index, team in enumerate(config.teams)
            ),
        )
    )


def versions_of(config: Config) -> Iterator[tuple[KeyPath, Model, Version]]:
    """Every version with its config path and its model."""
    for index, model in enumerate(config.models):
        for number, version in enumerate(model.versions):
            yield ("models", index, "versions", number), model, version


def _listeners(config: Config) -> Iterator[Problem]:
    found: dict[str, Address] = {}
    for key in ("listen", "admin_listen"):
        try:
            found[key] = parse_address(getattr(config.server, key))
        except ValueError as error:
            yield Problem(("server", key), str(error))
    admin = found.get("admin_listen")
    path: KeyPath = ("server", "admin_listen")
    if admin and not admin.is_loopback:
        yield Problem(path, f"must be a loopback address, for example 127.0.0.1:{admin.port}")
    if admin and "listen" in found and admin.overlaps(found["listen"]):
        differ = f"must differ from server.listen, {found['listen']}"
        yield Problem(path, differ, unless=("server",))


def _folders(config: Config) -> Iterator[Problem]:
    paths: list[tuple[KeyPath, str | None]] = [
        (("server", "state_dir"), config.server.state_dir),
        (("engine", "environment"), config.engine.environment),
        (("files", "store"), config.files.store),
    ]
    paths += [((*at, "weights"), version.weights) for at, _, version in versions_of(config)]
    paths += [
        ((*at, "adapters", number, "weights"), adapter.weights)
        for at, _, version in versions_of(config)
        for number, adapter in enumerate(version.adapters)
    ]
    for path, folder in paths:
        if folder and folder.startswith("~"):
            yield Problem(path, '"~" means nothing here: write the whole path')
        elif folder and "\0" in folder:
            yield Problem(path, "a path cannot hold a zero character")


def _files(config: Config, environ: Mapping[str, str]) -> Iterator[Problem]:
    files = config.files
    if not files.remote:
        for key in ("endpoint", "region", "access_key_env", "secret_key_env", "session_token_env"):
            if key in files.model_fields_set:
                yield Problem(("files", key), "means nothing for a folder: store is not s3://")
        return
    for key, other in (
        ("access_key_env", "secret_key_env"),
        ("secret_key_env", "access_key_env"),
        ("session_token_env", "access_key_env"),
    ):
        name = getattr(files, key)
        if name is None:
            continue
        if getattr(files, other) is None:
            yield Problem(("files", key), f"needs {other} beside it", unless=("files",))
        if not environ.get(name):
            # A key pasted here by mistake must not be repeated; variables are in capitals.
            which = f" {name}" if name.isupper() else " it names"
            yield Problem(("files", key), f"the environment variable{which} is not set")


def _deadlines(config: Config) -> Iterator[Problem]:
    deadline_s = config.server.request_deadline_s
    if "body_timeout_s" in config.server.model_fields_set:
        yield from _no_later(("server", "body_timeout_s"), config.server.body_timeout_s, deadline_s)
    for index, model in enumerate(config.models):
        if "wait_s_max" in model.queue.model_fields_set:
            path = ("models", index, "queue", "wait_s_max")
            yield from _no_later(path, model.queue.wait_s_max, deadline_s)


def _no_later(path: KeyPath, seconds: float, deadline_s: float) -> Iterator[Problem]:
    if seconds > deadline_s:
        yield Problem(
            path,
            f"{seconds:g} s is never reached: server.request_deadline_s is {deadline_s:g} s",
            unless=("server",),
        )


def _model_names(config: Config) -> Iterator[Problem]:
    """Names first, so that the alias is what is told to move."""
    owner: dict[str, KeyPath] = {}
    paths: list[tuple[KeyPath, str]] = [
        (("models", index, "name"), model.name) for index, model in enumerate(config.models)
    ]
    paths += [
        (("models", index, "aliases", number), alias)
        for index, model in enumerate(config.models)
        for number, alias in enumerate(model.aliases)
    ]
    for path, name in paths:
        if name in owner:
            yield Problem(path, f'"{name}" is already taken by {show_path(owner[name])}')
        else:
            owner[name] = path


def _model(path: KeyPath, model: Model) -> Iterator[Problem]:
    names = [version.version for version in model.versions]
    for number, name in enumerate(names):
        first = names.index(name)
        if first < number:
            taken = show_path((*path, "versions", first))
            yield Problem((*path, "versions", number, "version"), f'"{name}" is already {taken}')
    if model.default_version not in names:
        wrong = f'no version is called "{model.default_version}"'
        yield Problem(
            (*path, "default_version"), wrong + did_you_mean(model.default_version, names)
        )
    if model.output_tokens_max > model.context_tokens_max:
        yield Problem(
            (*path, "output_tokens_max"),
            f"{model.output_tokens_max:,} is more than context_tokens_max,"
            f" {model.context_tokens_max:,}",
        )
    if (model.defaults.output_tokens or 0) > model.output_tokens_max:
        yield Problem(
            (*path, "defaults", "output_tokens"),
            f"{model.defaults.output_tokens:,} is more than output_tokens_max,"
            f" {model.output_tokens_max:,}",
        )
    queue = model.queue
    if (
        "waiting_per_team_max" in queue.model_fields_set
        and queue.waiting_per_team_max > queue.waiting_max
    ):
        yield Problem(
            (*path, "queue", "waiting_per_team_max"),
            f"{queue.waiting_per_team_max:,} is never reached: waiting_max is"
            f" {queue.waiting_max:,}",
            unless=(*path, "queue"),
        )
    for number, version in enumerate(model.versions):
        yield from _version((*path, "versions", number), model, version)
        yield from variant_problems((*path, "versions", number), model, version)


def _version(path: KeyPath, model: Model, version: Version) -> Iterator[Problem]:
    workers, engine = version.workers, version.engine
    yield from check_prices((*path, "prices"), version.prices)
    if version.weights is None and workers.count > 0:
        yield Problem(
            (*path, "workers", "count"),
            f"{workers.count} cannot be started without weights: name a model folder in weights",
            unless=path,
        )
    elif workers.count == 0 and not version.attached:
        missing = "workers.count of 1 or more" if version.weights else "weights"
        never = f"no worker would ever serve it: it needs {missing}, or attached"
        yield Problem(path, never, unless=path)
    if version.checksum and version.weights is None:
        of_none = "is of no weights: name a model folder in weights"
        yield Problem((*path, "checksum"), of_none, unless=path)
    if workers.restart_backoff_s > workers.restart_backoff_s_max:
        yield Problem(
            (*path, "workers", "restart_backoff_s"),
            f"{workers.restart_backoff_s:g} s is more than restart_backoff_s_max,"
            f" {workers.restart_backoff_s_max:g} s",
            unless=(*path, "workers"),
        )
    context = version.context_tokens_max or model.context_tokens_max
    if engine.kv_tokens_max is not None and engine.kv_tokens_max < context:
        yield Problem(
            (*path, "engine", "kv_tokens_max"),
            f"{engine.kv_tokens_max:,} cannot hold one request of context_tokens_max, {context:,}",
        )
    if engine.device == "cpu" and engine.tensor_parallel > 1:
        yield Problem(
            (*path, "engine", "tensor_parallel"), 'counts GPUs: with device "cpu" it must be 1'
        )


def _attached(config: Config, environ: Mapping[str, str]) -> Iterator[Problem]:
    owner: dict[tuple[str, str | None], KeyPath] = {}
    for at, _, version in versions_of(config):
        for number, attached in enumerate(version.attached):
            path = (*at, "attached", number)
            place = (_origin(attached.url), attached.model)
            if wrong := _wrong_url(attached.url):
                yield Problem((*path, "url"), wrong)
            elif place in owner:
                # One server may hold several models; each must then be asked for by its own name.
                taken = show_path(owner[place])
                yield Problem(
                    (*path, "url"), f"is already {taken}; only another model may share it"
                )
            owner.setdefault(place, path)
            if attached.key_env and not environ.get(attached.key_env):
                # A key pasted here by mistake must not be repeated; variables are in capitals.
                name = f" {attached.key_env}" if attached.key_env.isupper() else " it names"
                yield Problem((*path, "key_env"), f"the environment variable{name} is not set")


def _origin(url: str) -> str:
    return url.rstrip("/").casefold()


def _wrong_url(url: str) -> str | None:
    """Why it is no origin; the URL itself is not repeated, for it may hold a password."""
    try:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            return "must not hold a user or password: name the key's variable in key_env"
        if not parts.hostname or parts.port == 0:
            return "must be http://host:port"
        if parts.path.rstrip("/").endswith("/v1"):
            return "must not end in /v1: inferd adds it"
    except ValueError:
        return "must be http://host:port with a port of 1 to 65,535"
    return None


def _team_names(config: Config) -> Iterator[Problem]:
    names = [team.name for team in config.teams]
    for index, name in enumerate(names):
        path: KeyPath = ("teams", index, "name")
        if name == SYSTEM_TEAM:
            yield Problem(
                path, f'"{name}" is the team of inferd\'s own requests: take another name'
            )
        elif (first := names.index(name)) < index:
            yield Problem(path, f'"{name}" is already taken by teams[{first}]')


def _team(path: KeyPath, team: Team, config: Config) -> Iterator[Problem]:
    models = {name: model for model in config.models for name in (model.name, *model.aliases)}
    adapters = {
        adapter.name
        for model in config.models
        for version in model.versions
        for adapter in version.adapters
    }
    seen: set[str] = set()
    for number, name in enumerate(team.models or ()):
        at = (*path, "models", number)
        if name in adapters:
            if name in seen:
                yield Problem(at, f'"{name}" is already in the list')
            seen.add(name)
        elif name not in models:
            yield Problem(
                at,
                f'no model or alias is called "{name}"' + did_you_mean(name, [*models, *adapters]),
            )
        elif models[name].name in seen:
            yield Problem(at, f'"{name}" is already in the list')
        else:
            seen.add(models[name].name)
    if team.models == ():
        yield Problem(
            (*path, "models"), "the team could use no model: leave it out for every model"
        )
    yield from _pairs(path, team)
    if team.budget is not None:
        yield from check_budget((*path, "budget"), team.budget)
    usable = [models[name] for name in team.models or models if name in models]
    if team.burst_tokens is not None and usable:
        yield from _smallest_bucket(path, team.burst_tokens, usable)
    for number, limits in enumerate(team.limits):
        yield from _model_limits((*path, "limits", number), limits, team, usable)
        first = next(n for n, one in enumerate(team.limits) if one.model == limits.model)
        if first < number:
            at = (*path, "limits", number, "model")
            yield Problem(
                at, f'"{limits.model}" has limits already: {show_path((*path, "limits", first))}'
            )


def _pairs(path: KeyPath, limits: Limited) -> Iterator[Problem]:
    for rate, burst in PAIRS:
        for key, other in ((rate, burst), (burst, rate)):
            if getattr(limits, key) is not None and getattr(limits, other) is None:
                yield Problem((*path, key), f"needs {other} beside it", unless=path)


def _model_limits(
    path: KeyPath, limits: LimitsOnModel, team: Team, usable: list[Model]
) -> Iterator[Problem]:
    names = {model.name: model for model in usable}
    if limits.model not in names:
        owner = next((m.name for m in usable if limits.model in m.aliases), None)
        wrong = (
            f'"{limits.model}" is an alias: name {owner} itself'
            if owner
            else f'team {team.name} has no model "{limits.model}"'
            + did_you_mean(limits.model, names)
        )
        yield Problem((*path, "model"), wrong)
    elif limits.burst_tokens is not None:
        yield from _smallest_bucket(path, limits.burst_tokens, [names[limits.model]])
    if all(getattr(limits, rate) is None for rate, _ in PAIRS):
        yield Problem(path, "limits nothing: set tokens_per_s or requests_per_s", unless=path)
    yield from _pairs(path, limits)


def _smallest_bucket(path: KeyPath, burst_tokens: int, usable: list[Model]) -> Iterator[Problem]:
    """A request that names no max_tokens claims its prompt and the model's output_tokens_max.

    A bucket that is smaller than that for every model of the team would refuse each of them for
    ever, however long it waited; one that fits a model is the operator's choice.
    """
    smallest = min(usable, key=lambda model: model.output_tokens_max)
    if burst_tokens <= smallest.output_tokens_max:
        yield Problem(
            (*path, "burst_tokens"),
            f"{burst_tokens:,} can never admit a request without max_tokens: it claims its prompt"
            f" and {smallest.output_tokens_max:,} tokens of {smallest.name}",
        )
