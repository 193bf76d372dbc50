"""Pools: names to pools, who may use which, and what /v1/models may show."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.config.schema import Model, Team
from inferd.config.variants import Adapter, Takes
from inferd.config.version import Version
from inferd.errors import ModelNotAllowed, UnknownModel
from inferd.inference import Caller
from inferd.routing.pools import Pools

SMALL = Model(
    name="chat-small",
    aliases=("small", "gpt-x"),
    default_version="2",
    context_tokens_max=8_192,
    output_tokens_max=2_048,
    choices_max=4,
    versions=(Version(version="1"), Version(version="2")),
)
LARGE = Model(
    name="org/chat-large",
    default_version="a",
    context_tokens_max=32_768,
    output_tokens_max=4_096,
    reasoning=True,
    versions=(Version(version="a"),),
)
TEAM = Team(name="search")
CALLER = Caller("search", "key_1")


@pytest.fixture
def pools() -> Pools:
    return Pools([SMALL, LARGE])


@pytest.mark.parametrize(
    ("name", "pool", "pinned"),
    [
        ("chat-small", "chat-small@2", False),
        ("small", "chat-small@2", False),
        ("chat-small@1", "chat-small@1", True),
        ("gpt-x@2", "chat-small@2", True),
        ("org/chat-large", "org/chat-large@a", False),
    ],
)
def test_names_aliases_and_pinned_versions_lead_to_pools(
    pools: Pools, name: str, pool: str, pinned: bool
) -> None:
    route = pools.resolve(name, CALLER, TEAM)
    assert (route.pool, route.pinned, route.model) == (pool, pinned, name)
    assert route.pool == f"{route.limits.name}@{route.version}"


def test_the_cache_is_shared_where_the_version_says_so() -> None:
    versions = (Version(version="1"), Version(version="2", cache_scope="shared"))
    pools = Pools([SMALL.model_copy(update={"versions": versions})])
    shared = {
        name: pools.resolve(name, CALLER, TEAM).shared_cache
        for name in ("chat-small", "small", "chat-small@1", "chat-small@2")
    }
    assert shared == {
        "chat-small": True,
        "small": True,
        "chat-small@1": False,
        "chat-small@2": True,
    }


def test_a_route_carries_the_limits_that_validation_needs(pools: Pools) -> None:
    limits = pools.resolve("gpt-x", CALLER, TEAM).limits
    assert (limits.name, limits.context_tokens_max, limits.output_tokens_max) == (
        "chat-small",
        8_192,
        2_048,
    )
    assert (limits.choices_max, limits.reasoning) == (4, False)
    assert pools.resolve("org/chat-large", CALLER, TEAM).limits.reasoning


@pytest.mark.parametrize("name", ["nothing", "", "chat-small@3", "chat-small@", "@2", "Chat-Small"])
def test_an_unknown_name_is_a_404_that_repeats_it(pools: Pools, name: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        pools.resolve(name, CALLER, TEAM)
    error = refused.value
    expected = f"The model `{name}` does not exist or you do not have access to it."
    assert error.message == expected
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")


def test_an_endless_unknown_name_is_not_repeated_whole(pools: Pools) -> None:
    with pytest.raises(UnknownModel) as refused:
        pools.resolve("x" * 1_000_000, CALLER, TEAM)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("listed", ["chat-small", "small"])
def test_a_teams_list_names_models_by_public_name_or_alias(pools: Pools, listed: str) -> None:
    team = Team(name="search", models=(listed,))
    for name in ("chat-small", "gpt-x", "chat-small@1"):
        assert pools.resolve(name, CALLER, team).limits.name == "chat-small"
    with pytest.raises(ModelNotAllowed, match="Team `search`") as refused:
        pools.resolve("org/chat-large", CALLER, team)
    assert (refused.value.status, refused.value.code) == (403, "model_not_allowed")


def test_a_key_may_be_narrower_than_its_team_but_never_wider(pools: Pools) -> None:
    caller = Caller("search", "key_2", frozenset({"org/chat-large"}))
    assert pools.resolve("org/chat-large@a", caller, TEAM).pool == "org/chat-large@a"
    with pytest.raises(ModelNotAllowed, match="API key"):
        pools.resolve("small", caller, TEAM)
    with pytest.raises(ModelNotAllowed):
        pools.resolve("org/chat-large", caller, Team(name="search", models=("chat-small",)))
    with pytest.raises(ModelNotAllowed):
        pools.resolve("small", Caller("search", "key_3", frozenset()), TEAM)


def test_models_shows_what_the_key_may_use_in_the_order_of_the_config(pools: Pools) -> None:
    assert [view.id for view in pools.visible(CALLER, TEAM)] == ["chat-small", "org/chat-large"]
    caller = Caller("search", "key_2", frozenset({"small"}))
    (view,) = pools.visible(caller, TEAM)
    assert (view.id, view.version, view.pool) == ("chat-small", "2", "chat-small@2")
    assert (view.context_tokens_max, view.output_tokens_max) == (8_192, 2_048)
    assert (view.kind, view.aliases, view.versions) == ("chat", ("small", "gpt-x"), ("1", "2"))


def test_one_model_is_shown_under_the_name_it_was_asked_for(pools: Pools) -> None:
    view = pools.view("small@1", CALLER, TEAM)
    assert (view.id, view.version, view.pool) == ("small@1", "1", "chat-small@1")
    with pytest.raises(UnknownModel):
        pools.view("nothing", CALLER, TEAM)


def test_a_reload_replaces_the_whole_table(pools: Pools) -> None:
    before = pools.resolve("small", CALLER, TEAM)
    moved = SMALL.model_copy(update={"default_version": "1", "aliases": ("tiny",)})
    pools.update([moved])
    assert pools.resolve("chat-small", CALLER, TEAM).pool == "chat-small@1"
    assert pools.resolve("tiny", CALLER, TEAM).pool == "chat-small@1"
    assert pools.ids == ("chat-small@1", "chat-small@2")
    for gone in ("small", "org/chat-large"):
        with pytest.raises(UnknownModel):
            pools.resolve(gone, CALLER, TEAM)
    assert before.pool == "chat-small@2"


def lora(*names: str, **more: Any) -> dict[str, Any]:
    adapters = tuple(Adapter(name=name, weights=f"adapters/{name}") for name in names)
    return {"weights": "w", "adapters": adapters, **more}


BASE = Model(
    name="base",
    aliases=("b",),
    default_version="1",
    context_tokens_max=8_192,
    output_tokens_max=2_048,
    versions=(
        Version(version="1", **lora("sql", "legal")),
        Version(version="2", **lora("sql", "mail")),
    ),
)


def test_an_adapter_is_a_model_of_its_own_on_its_bases_workers() -> None:
    pools = Pools([BASE])
    sql = pools.resolve("sql", CALLER, TEAM)
    assert (sql.pool, sql.limits.name, sql.pinned) == ("base@1", "sql", False)
    assert sql.adapter is not None
    assert sql.adapter == pools.resolve("sql@1", CALLER, TEAM).adapter
    assert pools.resolve("sql@2", CALLER, TEAM).pool == "base@2"
    assert pools.resolve("mail", CALLER, TEAM).pool == "base@2"  # the default has none
    assert pools.resolve("base", CALLER, TEAM).adapter is None
    assert [view.id for view in pools.visible(CALLER, TEAM)] == ["base", "sql", "legal", "mail"]
    view = pools.view("mail", CALLER, TEAM)
    assert (view.parent, view.versions, view.pool) == ("base", ("2",), "base@2")


@pytest.mark.parametrize("name", ["base:sql", "b:sql", "nothing", "legal@2", "sql@3", "base:"])
def test_an_unknown_adapter_is_never_the_base(name: str) -> None:
    with pytest.raises(UnknownModel):
        Pools([BASE]).resolve(name, CALLER, TEAM)


def test_who_may_use_the_base_may_not_use_its_adapters_for_that() -> None:
    pools = Pools([BASE])
    for team in (Team(name="t", models=("base",)), Team(name="t", models=("b",))):
        with pytest.raises(ModelNotAllowed):
            pools.resolve("sql", CALLER, team)
        assert [view.id for view in pools.visible(CALLER, team)] == ["base"]
    only = Team(name="t", models=("sql",))
    assert pools.resolve("sql", CALLER, only).adapter is not None
    with pytest.raises(ModelNotAllowed):
        pools.resolve("base", CALLER, only)


def test_another_folder_under_the_same_name_is_another_adapter_to_the_engine() -> None:
    pools = Pools([BASE])
    before = pools.resolve("sql", CALLER, TEAM).adapter
    moved = Adapter(name="sql", weights="adapters/sql-2")
    pools.update([BASE.model_copy(update={"versions": (Version(version="1", adapters=(moved,)),)})])
    after = pools.resolve("sql", CALLER, TEAM).adapter
    assert before is not None
    assert after is not None
    assert before.name == after.name
    assert before.key != after.key
    with pytest.raises(UnknownModel):
        pools.resolve("legal", CALLER, TEAM)


MANY = Model(
    name="m",
    default_version="1",
    context_tokens_max=8_192,
    output_tokens_max=2_048,
    versions=(
        Version(version="1"),
        Version(version="fast", takes=Takes(teams=("search",), inflight_below=4)),
        Version(version="long", context_tokens_max=32_768, takes=Takes(prompt_tokens_min=6_000)),
        Version(
            version="longer", context_tokens_max=131_072, takes=Takes(prompt_tokens_min=30_000)
        ),
    ),
)


@pytest.mark.parametrize(
    ("team", "tokens", "inflight", "version"),
    [
        ("mail", 100, 4, "1"),
        ("mail", 100, 3, "fast"),  # it has little to do
        ("search", 100, 400, "fast"),  # its own team's version, whatever it has to do
        ("search", 100, None, "1"),  # no worker of it is ready
        ("search", 6_000, 0, "long"),
        ("mail", 29_999, None, "long"),
        ("mail", 30_000, 0, "longer"),
    ],
)
def test_versions_take_requests_by_length_team_and_load(
    team: str, tokens: int, inflight: int | None, version: str
) -> None:
    pools = Pools([MANY])
    pools.inflight_of = lambda _: inflight
    route = pools.choose(pools.resolve("m", CALLER, TEAM), team, tokens)
    assert (route.version, route.pool, route.model) == (version, f"m@{version}", "m")
    assert route.longer_pool == (None if version == "longer" else "m@longer")
    pinned = pools.choose(pools.resolve("m@1", CALLER, TEAM), team, tokens)
    assert (pinned.version, pinned.longer_pool) == ("1", None)


def test_validation_goes_by_the_longest_context_that_may_take_it() -> None:
    pools = Pools([MANY])
    route = pools.resolve("m", CALLER, TEAM)
    assert (route.limits.context_tokens_max, route.widest.context_tokens_max) == (8_192, 131_072)
    assert pools.resolve("m@1", CALLER, TEAM).widest.context_tokens_max == 8_192
    assert pools.view("m", CALLER, TEAM).context_tokens_max == 131_072
