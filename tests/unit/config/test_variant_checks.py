"""Adapters, sides and flags in inferd.toml. Goal: what could not work is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.config.load import parse_config
from inferd.errors import ConfigError

HEAD = """
[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4096
output_tokens_max = 512

[[models.versions]]
version = "1"
weights = "w"
"""
TEAM = '\n[[teams]]\nname = "search"\n'
LORA = "engine = { lora = {} }\n"
ADAPTER = '[[models.versions.adapters]]\nname = "sql"\nweights = "a"\n'
SECOND = '[[models.versions]]\nversion = "2"\nweights = "w"\n'


def problems(text: str) -> str:
    try:
        parse_config(Path("inferd.toml"), text, {})
    except ConfigError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    "text",
    [
        HEAD + LORA + ADAPTER + TEAM,
        HEAD + LORA + ADAPTER + SECOND + LORA + ADAPTER + TEAM,
        HEAD + LORA + ADAPTER + TEAM + 'models = ["sql"]',
        HEAD + "split = { prefill_workers = 2 }\n",
        HEAD + SECOND + "context_tokens_max = 131072\ntakes = { prompt_tokens_min = 3000 }\n",
        HEAD + SECOND + 'takes = { teams = ["search"], inflight_below = 4 }\n' + TEAM,
        HEAD + 'engine = { kv_dtype = "fp8_e4m3", quantization = "fp8" }\n',
        HEAD + 'engine = { extra_args = ["--nnodes", "2", "--attn-cp-size", "2"] }\n',
    ],
)
def test_what_works_is_taken(text: str) -> None:
    assert problems(text) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD + ADAPTER, "adapters: needs engine.lora, which has the engine keep adapters"),
        (
            HEAD + LORA + ADAPTER.replace("sql", "chat"),
            'adapters[0].name: "chat" is already a model\'s name',
        ),
        (HEAD + LORA + ADAPTER + ADAPTER, '"sql" is already adapters[0] of this version'),
        (
            HEAD + LORA + ADAPTER + HEAD.replace('"chat"', '"other"') + LORA + ADAPTER,
            '"sql" is already an adapter of chat',
        ),
        (HEAD + LORA + ADAPTER.replace("sql", "chat:sql"), ": an adapter; this is"),
        (
            HEAD + 'attached = [{ url = "http://h:1" }]\n' + LORA + ADAPTER,
            "adapters: needs workers that inferd starts",
        ),
        (
            HEAD + "engine = { lora = { loaded_max = 2 } }\n",
            "loaded_max: 2 is less than running_max, 8",
        ),
        (HEAD + LORA + "split = {}\n" + ADAPTER, "adapters: cannot be had together with split"),
        (
            HEAD + 'split = {}\nattached = [{ url = "http://h:1" }]\n',
            "split: needs weights, and no attached workers",
        ),
        (HEAD + "takes = { inflight_below = 2 }\n", "takes: is the default version"),
        (HEAD + SECOND + "takes = {}\n", "takes: takes nothing: set prompt_tokens_min, teams"),
        (
            HEAD + SECOND + "takes = { prompt_tokens_min = 4096 }\n",
            "prompt_tokens_min: 4,096 leaves no room in context_tokens_max, 4,096",
        ),
        (
            HEAD + SECOND + 'takes = { teams = ["serch"] }\n' + TEAM,
            'teams[0]: no team is called "serch" (did you mean "search"?)',
        ),
        (HEAD + LORA + ADAPTER + TEAM + 'models = ["sqll"]', 'no model or alias is called "sqll"'),
        (
            HEAD + "context_tokens_max = 8192\nengine = { kv_tokens_max = 4096 }\n",
            "cannot hold one request of context_tokens_max, 8,192",
        ),
    ],
)
def test_what_cannot_work_is_told(text: str, told: str) -> None:
    assert told in problems(text)


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("--host", "workers listen on the loopback address alone"),
        ("--host=0.0.0.0", "workers listen on the loopback address alone"),
        ("--served_model_name", "write the model's `name`"),
        ("--api-k", "each worker has a key of its own"),
        ("--max-lora-rank", "write `engine.lora.rank_max`"),
        ("--disaggregation-mode", "write `split`"),
    ],
)
def test_flags_that_inferd_gives_cannot_be_given_again(argument: str, instead: str) -> None:
    text = problems(HEAD + f'engine = {{ extra_args = ["--dtype", "half", "{argument}"] }}\n')
    assert "extra_args[2]" in text
    assert instead in text
    assert "0.0.0.0" not in text  # what could be a secret is not repeated
