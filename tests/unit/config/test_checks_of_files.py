"""The section `files` beside the others. Goal: a store that cannot be meant is told, with line."""

from __future__ import annotations

import pytest

from tests.unit.config.test_checks import RIGHT, load, problems_of

S3 = '[files]\nstore = "s3://bucket/prefix"\n'
KEYS = {"KEY_ID": "a", "SECRET": "b"}


def test_files_in_a_store_far_away() -> None:
    text = f'{S3}endpoint = "http://h:9000"\naccess_key_env = "KEY_ID"\nsecret_key_env = "SECRET"\n'
    assert load(f"{text}{RIGHT}", KEYS).config.files.remote
    assert load(f"{S3}{RIGHT}").config.files.region == "us-east-1"
    assert not load(RIGHT).config.files.remote


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[files]\nregion = "eu-west-1"\n', "2: files.region: means nothing for a folder"),
        ('[files]\nstore = "~/files"\n', '2: files.store: "~" means nothing here'),
        ('[files]\nstore = "gs://b"\n', "2: files.store: must be a folder, or s3://bucket"),
        (f'{S3}access_key_env = "KEY_ID"\n', "3: files.access_key_env: needs secret_key_env"),
        (f'{S3}session_token_env = "KEY_ID"\n', "3: files.session_token_env: needs access_key_env"),
        (
            f'{S3}access_key_env = "GONE"\nsecret_key_env = "SECRET"\n',
            "3: files.access_key_env: the environment variable GONE is not set",
        ),
        (
            f'{S3}access_key_env = "AKxyz"\nsecret_key_env = "SECRET"\n',
            "3: files.access_key_env: the environment variable it names is not set",
        ),
    ],
)
def test_a_store_that_cannot_be_used(text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems_of(f"{text}{RIGHT}", KEYS))
