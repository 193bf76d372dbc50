"""Two configurations -> typed changes. Goal: every key's change is seen, and needs what it says.

Method: one key at a time is given another value, found through the schema, so that a key added
later is tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config import reload
from inferd.config.change import Change
from inferd.config.locate import KeyPath, show_path
from inferd.config.reload import diff, needing_restart
from inferd.config.schema import Config, Model, section_in
from inferd.config.section import Section

RAW: dict[str, Any] = {
    "server": {},
    "engine": {},
    "logs": {},
    "models": (
        {
            "name": "chat",
            "default_version": "1",
            "context_tokens_max": 4_096,
            "output_tokens_max": 1_024,
            "targets": {},
            "queue": {},
            "versions": (
                {
                    "version": "1",
                    "weights": "w",
                    "engine": {"lora": {"targets": ("all",)}},
                    "workers": {},
                    "attached": ({"url": "http://a:1"},),
                    "takes": {},
                    "split": {},
                    "adapters": ({"name": "sql", "weights": "s"},),
                },
                {"version": "2", "weights": "v"},
            ),
        },
        {
            "name": "other",
            "default_version": "1",
            "context_tokens_max": 4_096,
            "output_tokens_max": 1_024,
            "versions": ({"version": "1", "weights": "o"},),
        },
    ),
    "teams": (
        {
            "name": "search",
            "limits": ({"model": "chat"},),
            "budget": {"money_per_month": 10, "tokens_per_month": 1_000},
            "recording": {"kept_days": 7},
        },
        {"name": "mail"},
    ),
}
OTHER_VALUES: dict[str, Any] = {
    "aliases": ("small",),
    "models": ("chat",),
    "extra_args": ("--flag",),
    "env": {"A": "1"},
    "device": "cpu",
    "act": "log",
    "level": "debug",
    "placement": "least_tokens",
    "priority_max": "batch",
    "reasoning": True,
    "kind": "embedding",
    "transfer": "nixl",
    "targets": ("q_proj",),
    "teams": ("search",),
    "dimensions": (64,),
    "key_env": "KEY",
    "currency": "EUR",
    "stop": False,
    "url": "http://b:1",
    "checksum": "sha256:" + "0" * 64,
    "cache_scope": "shared",
    "extras": ("top_k",),
    "purposes": ("user_data",),
}
IDENTITY = {("models", 0, "name"), ("models", 0, "versions", 0, "version"), ("teams", 0, "name")}
BASE = Config.model_validate(RAW)


def keys(section: type[Section], path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, Any]]:
    """Each plain key below a section: its path, the reload mark that holds for it, its type."""
    for name, field in section.model_fields.items():
        below = section_in(field.annotation)
        here = (*path, name)
        if below:
            is_array = "tuple" in str(field.annotation)
            yield from keys(below, (*here, 0) if is_array else here)
        else:
            mark = field.json_schema_extra or section.model_config["json_schema_extra"]
            assert isinstance(mark, dict)
            yield here, str(mark["reload"]), field.annotation


KEYS = {show_path(path): (path, mark, kind) for path, mark, kind in keys(Config)}


def other_value(key: str, kind: Any, value: Any) -> Any:
    if key in OTHER_VALUES:
        return OTHER_VALUES[key]
    if "str" in str(kind):
        return f"{value or ''}2"
    return 7 if value is None else value / 2 if isinstance(value, float) else value + 1


def changed(config: Config, path: KeyPath, change: Callable[[Any], Any]) -> Config:
    """A copy in which the value at `path` is another one."""

    def inside(node: Any, rest: KeyPath) -> Any:
        if not rest:
            return change(node)
        part, deeper = rest[0], rest[1:]
        if isinstance(part, int):
            return (*node[:part], inside(node[part], deeper), *node[part + 1 :])
        return node.model_copy(update={part: inside(getattr(node, part), deeper)})

    copy = inside(config, path)
    assert isinstance(copy, Config)
    return copy


def kinds(changes: list[Change]) -> list[str]:
    return [type(change).__name__ for change in changes]


def test_every_section_says_what_its_change_needs() -> None:
    assert {mark for _, mark, _ in KEYS.values()} == {"live", "drain", "restart"}


@pytest.mark.parametrize("name", KEYS)
def test_a_change_of_a_key_needs_what_its_section_says(name: str) -> None:
    path, mark, kind = KEYS[name]
    key = str(path[-1])
    new = changed(BASE, path, lambda value: other_value(key, kind, value))
    changes = diff(BASE, new)
    assert changes, "a key that can change without effect"
    if path in IDENTITY:
        assert {type(change).__name__[-5:] for change in changes} == {"Added", "moved"}
        return
    needs = {change.reload for change in changes}
    assert max(needs, key=["live", "drain", "restart"].index) == mark
    if mark == "restart":
        (refused,) = needing_restart(changes)
        assert str(refused).startswith(f"{name} needs a restart: ")
    else:
        assert not needing_restart(changes)


def test_nothing_changes_between_equal_files() -> None:
    assert diff(BASE, Config.model_validate(RAW)) == []
    written_out = changed(BASE, ("logs",), lambda logs: logs.model_copy(update={"level": "info"}))
    assert diff(BASE, written_out) == []


def test_the_context_length_replaces_the_workers_that_were_started_with_it() -> None:
    new = changed(BASE, ("models", 0, "context_tokens_max"), lambda _: 8_192)
    assert kinds(diff(BASE, new)) == ["ModelChanged", "VersionChanged", "VersionChanged"]


def test_a_worker_count_is_told_with_both_numbers() -> None:
    new = changed(BASE, ("models", 0, "versions", 0, "workers", "count"), lambda _: 3)
    (change,) = diff(BASE, new)
    assert change == reload.WorkerCountChanged("chat", "1", before=1, after=3)


def test_an_attached_worker_that_changes_is_added_then_removed() -> None:
    new = changed(BASE, ("models", 0, "versions", 0, "attached", 0, "inflight_max"), lambda _: 2)
    added, removed = diff(BASE, new)
    assert isinstance(added, reload.AttachedAdded)
    assert added.attached.inflight_max == 2
    assert isinstance(removed, reload.AttachedRemoved)
    assert removed.attached.inflight_max == 256


def test_a_new_version_takes_over_before_the_old_one_goes() -> None:
    def roll(model: Any) -> Any:
        _, second = model.versions
        third = second.model_copy(update={"version": "3"})
        return model.model_copy(update={"versions": (second, third), "default_version": "3"})

    new = changed(BASE, ("models", 0), roll)
    assert kinds(diff(BASE, new)) == ["VersionAdded", "ModelChanged", "VersionRemoved"]


def test_a_model_is_there_before_a_team_may_use_it_and_after_none_does() -> None:
    lonely = changed(BASE, ("models",), lambda models: models[:1])
    bound = changed(
        BASE,
        ("teams", 0),
        lambda team: team.model_copy(update={"models": ("other",)}),
    )
    assert kinds(diff(lonely, bound)) == ["ModelAdded", "TeamChanged"]
    assert kinds(diff(bound, lonely)) == ["TeamChanged", "ModelRemoved"]


def test_the_order_in_a_file_means_nothing() -> None:
    def backwards(entries: Any) -> Any:
        return entries[::-1]

    new = changed(changed(BASE, ("models",), backwards), ("teams",), backwards)
    new = changed(new, ("models", 1, "versions"), backwards)
    assert diff(BASE, new) == []


def test_one_change_that_needs_a_restart_is_named_among_others() -> None:
    new = changed(BASE, ("server", "listen"), lambda _: "0.0.0.0:80")
    new = changed(new, ("logs", "level"), lambda _: "debug")
    changes = diff(BASE, new)
    assert kinds(changes) == ["NeedsRestart", "LogLevelChanged"]
    assert [str(change) for change in needing_restart(changes)] == [
        "server.listen needs a restart: inferd takes its addresses once, at start"
    ]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Some teams, models and versions, each in one of two shapes."""

    def some(names: str) -> list[str]:
        return draw(st.lists(st.sampled_from(names), unique=True, min_size=1))

    def model(name: str) -> dict[str, Any]:
        versions = some("123")
        return {
            "name": name,
            "default_version": draw(st.sampled_from(versions)),
            "context_tokens_max": 4_096,
            "output_tokens_max": draw(st.sampled_from([1, 2])),
            "versions": tuple(
                {
                    "version": version,
                    "weights": draw(st.sampled_from("xy")),
                    "workers": {"count": draw(st.integers(0, 2))},
                }
                for version in versions
            ),
        }

    return Config.model_validate(
        {
            "models": tuple(model(name) for name in some("abc")),
            "teams": tuple(
                {"name": name, "weight": draw(st.integers(1, 2))} for name in some("tu")
            ),
        }
    )


def teams_after(changes: list[Change], old: Config) -> dict[str, int]:
    teams = {team.name: team.weight for team in old.teams}
    for change in changes:
        if isinstance(change, reload.TeamRemoved):
            del teams[change.team.name]
        elif isinstance(change, reload.TeamAdded | reload.TeamChanged):
            team = change.team if isinstance(change, reload.TeamAdded) else change.after
            teams[team.name] = team.weight
    return teams


def models_after(changes: list[Change], old: Config) -> dict[str, tuple[str, int]]:
    models = {model.name: (model.default_version, model.output_tokens_max) for model in old.models}
    for change in changes:
        if isinstance(change, reload.ModelRemoved):
            del models[change.model.name]
        elif isinstance(change, reload.ModelAdded | reload.ModelChanged):
            model = change.model if isinstance(change, reload.ModelAdded) else change.after
            models[model.name] = model.default_version, model.output_tokens_max
    return models


def pools_of(model: Model) -> dict[tuple[str, str], tuple[str | None, int]]:
    return {(model.name, v.version): (v.weights, v.workers.count) for v in model.versions}


def pools_after(changes: list[Change], old: Config) -> dict[tuple[str, str], Any]:
    """Weights and workers of each pool; none is added twice, none removed that is not there."""
    pools: dict[tuple[str, str], Any] = {}
    for model in old.models:
        pools |= pools_of(model)
    for change in changes:
        match change:
            case reload.ModelAdded(model):
                assert not pools_of(model).keys() & pools.keys()
                pools |= pools_of(model)
            case reload.ModelRemoved(model):
                for pool in pools_of(model):
                    del pools[pool]
            case reload.VersionAdded(name, version):
                assert (name, version.version) not in pools
                pools[name, version.version] = version.weights, version.workers.count
            case reload.VersionChanged(name, _, version):
                pools[name, version.version] = version.weights, pools[name, version.version][1]
            case reload.WorkerCountChanged(name, version_name, before, after):
                assert pools[name, version_name][1] == before
                pools[name, version_name] = pools[name, version_name][0], after
            case reload.VersionRemoved(name, version):
                del pools[name, version.version]
    return pools


@given(configs(), configs())
def test_the_changes_lead_from_the_old_configuration_to_the_new_one(
    old: Config, new: Config
) -> None:
    changes = diff(old, new)
    assert teams_after(changes, old) == teams_after([], new)
    assert models_after(changes, old) == models_after([], new)
    assert pools_after(changes, old) == pools_after([], new)
    assert diff(new, new) == []
