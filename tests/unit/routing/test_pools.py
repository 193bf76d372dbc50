"""Pools: names to pools, who may use which, and what /v1/models may show."""

from __future__ import annotations

import pytest

from inferd.config.schema import Model, Team
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
