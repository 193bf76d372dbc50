"""The Authorization header: who asks, and what a wrong one is told."""

from __future__ import annotations

import pytest

from inferd.api.auth import KEY_CHARS_MAX, authenticate
from inferd.errors import AuthError, InvalidKey, MissingKey
from inferd.inference import Caller

SECRET = "sk-inferd-" + "a" * 43
ALICE = Caller(team="search", key_id="key_1")


class OneKey:
    def authenticate(self, secret: str, now_us: int) -> Caller:
        if secret != SECRET or now_us != 7:
            raise InvalidKey("Incorrect API key provided.")
        return ALICE


def ask(*values: bytes) -> Caller:
    headers = [(b"host", b"x"), *((b"authorization", value) for value in values)]
    return authenticate(headers, OneKey(), 7)


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER {}", "  Bearer   {}  "])
def test_a_bearer_key_is_its_owner(form: str) -> None:
    assert ask(form.format(SECRET).encode()) is ALICE


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer ",),
        (b"Basic dXNlcjpwYXNz",),
        (SECRET.encode(),),
        (b"Token " + SECRET.encode(),),
    ],
)
def test_no_key_is_told_how_to_send_one(values: tuple[bytes, ...]) -> None:
    with pytest.raises(MissingKey) as caught:
        ask(*values)
    assert (caught.value.status, caught.value.type) == (401, "invalid_request_error")
    assert caught.value.code is None
    assert "Authorization: Bearer" in caught.value.message


@pytest.mark.parametrize(
    "values",
    [
        (b"Bearer sk-inferd-wrong",),
        (b"Bearer " + SECRET.encode() + b" more",),
        (b"Bearer sk-\xff",),
        (b"Bearer " + b"a" * (KEY_CHARS_MAX + 1),),
        (b"Bearer " + SECRET.encode(), b"Bearer " + SECRET.encode()),
    ],
)
def test_a_wrong_key_is_refused_and_never_repeated(values: tuple[bytes, ...]) -> None:
    with pytest.raises(AuthError) as caught:
        ask(*values)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert "sk-" not in caught.value.message
