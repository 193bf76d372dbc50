from __future__ import annotations

from typing import Any

import pytest

from inferd.api.changes import in_words
from inferd.config.reload import ORDER, diff
from inferd.config.schema import Config

VERSION: dict[str, Any] = {"version": "1", "weights": "w"}
MODEL: dict[str, Any] = {
    "name": "chat",
    "default_version": "1",
    "context_tokens_max": 4_096,
    "output_tokens_max": 512,
    "versions": (VERSION,),
}
BASE: dict[str, Any] = {"models": (MODEL,), "teams": ({"name": "search"},)}
OTHER: dict[str, Any] = MODEL | {"name": "other"}
ADAPTER = {"name": "sql", "weights": "adapters/sql"}
ATTACHED = {"url": "http://h:1"}


def config(**changes: Any) -> Config:
    return Config.model_validate(BASE | changes)


def with_model(**changes: Any) -> Config:
    return config(models=(MODEL | changes,))


def with_version(**changes: Any) -> Config:
    return with_model(versions=(VERSION | changes,))


CASES: list[tuple[Config, Config, str]] = [
    (config(), config(logs={"level": "debug"}), "logs: level info -> debug"),
    (config(), config(server={"keep_workers": True}), "server: keep_workers False -> True"),
    (config(), config(billing={"currency": "EUR"}), "billing: currency USD -> EUR"),
    (
        config(),
        with_version(prices={"input": 0.15}),
        "chat@1: prices: input 0 -> 0.15",
    ),
    (config(), config(files={"life_s": 7_200}), "files: life_s 2,592,000 -> 7,200"),
    (
        config(),
        config(files={"store": "elsewhere"}),
        "files.store needs a restart: files that are there would not be found any more",
    ),
    (config(), config(batches={"attempts_max": 5}), "batches: attempts_max 3 -> 5"),
    (config(), config(teams=()), "team search is removed; its keys are refused from now on"),
    (config(teams=()), config(), "team search is added"),
    (
        config(),
        config(
            teams=({"name": "search", "weight": 2, "tokens_per_s": 1_000, "models": ("chat",)},)
        ),
        "team search: models changed, weight 1 -> 2, tokens_per_s unset -> 1,000",
    ),
    (
        config(),
        with_version(cache_scope="shared"),
        "chat@1: cache_scope team -> shared for what comes",
    ),
    (config(), config(models=(MODEL, OTHER)), "model other is added; its workers start"),
    (
        config(models=(MODEL, OTHER)),
        config(),
        "model other is removed; its workers drain and stop",
    ),
    (
        config(),
        with_model(aliases=("fast",), output_tokens_max=1_024),
        "model chat: aliases changed, output_tokens_max 512 -> 1,024",
    ),
    (
        config(),
        with_model(versions=(VERSION, VERSION | {"version": "2"})),
        "chat@2 is added; its workers start",
    ),
    (
        with_model(versions=(VERSION, VERSION | {"version": "2"})),
        config(),
        "chat@2 is removed; its workers drain and stop",
    ),
    (
        config(),
        with_version(engine={"running_max": 8}),
        "chat@1: engine changed; its workers drain and are replaced, one after another",
    ),
    (config(), with_version(workers={"count": 3}), "chat@1: workers 1 -> 3; more start"),
    (
        config(),
        with_version(workers={"count": 0}),
        "chat@1: workers 1 -> 0; those too many drain and stop",
    ),
    (
        config(),
        with_version(workers={"drain_s": 5.0}),
        "chat@1: workers: drain_s 60.0 -> 5.0",
    ),
    (
        config(),
        with_version(watchdog={"act": "log", "silence_s": 20.0}),
        "chat@1: watchdog: act kill -> log, silence_s 10.0 -> 20.0",
    ),
    (config(), with_version(attached=(ATTACHED,)), "chat@1: attached worker http://h:1 is added"),
    (
        with_version(attached=(ATTACHED,)),
        config(),
        "chat@1: attached worker http://h:1 is let go when it is idle",
    ),
    (
        config(),
        with_version(adapters=(ADAPTER,)),
        "chat@1: adapter sql is added and loaded",
    ),
    (
        with_version(adapters=(ADAPTER,)),
        config(),
        (
            "chat@1: adapter sql (adapters/sql) is removed: its name is unknown at once, and it is"
            " unloaded when its requests have ended"
        ),
    ),
    (
        with_version(takes={"inflight_below": 2}),
        with_version(takes={"inflight_below": 4}),
        "chat@1: takes changed; no worker is replaced",
    ),
    (
        config(),
        config(server={"stall_s": 1.0}),
        "server.stall_s needs a restart: the listeners are made with it, once, at start",
    ),
]


@pytest.mark.parametrize(("before", "after", "text"), CASES, ids=[case[2] for case in CASES])
def test_a_change_is_told_in_words(before: Config, after: Config, text: str) -> None:
    (change,) = diff(before, after)
    assert in_words(change) == text


def test_every_kind_of_change_has_its_words() -> None:
    told = {type(change) for before, after, _ in CASES for change in diff(before, after)}
    assert told == set(ORDER)


def test_a_longer_context_replaces_workers() -> None:
    model, version = diff(config(), with_model(context_tokens_max=8_192))
    assert in_words(model) == "model chat: context_tokens_max 4,096 -> 8,192"
    assert in_words(version).startswith("chat@1: context_tokens_max of its model; its workers")
