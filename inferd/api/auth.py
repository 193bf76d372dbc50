"""`Authorization: Bearer <key>` -> `Caller`. Nothing that a client sends here is ever repeated."""

from __future__ import annotations

from typing import Final, Protocol

from inferd.api.headers import Headers
from inferd.errors import InvalidKey, MissingKey
from inferd.inference import Caller

KEY_CHARS_MAX: Final = 256
_SCHEME: Final = b"bearer"


class Keys(Protocol):
    """The key index, as far as authentication goes."""

    def authenticate(self, secret: str, now_us: int) -> Caller:
        """Raises InvalidKey for a key that is unknown, expired or revoked."""


def authenticate(headers: Headers, keys: Keys, now_us: int) -> Caller:
    """Who asks. `headers` are the scope's; `now_us` is wall time in microseconds.

    Raises:
        MissingKey: no `Authorization`, an empty one, or a scheme that is not Bearer.
        InvalidKey: something that cannot be a key, or that is none of ours.
    """
    given = [value for name, value in headers if name == b"authorization"]
    if not given:
        raise MissingKey(
            "You didn't provide an API key. Send it in an Authorization header: "
            "'Authorization: Bearer YOUR_KEY'."
        )
    scheme, _, secret = given[0].strip().partition(b" ")
    secret = secret.strip()
    if scheme.lower() != _SCHEME or not secret:
        raise MissingKey(
            "You didn't provide an API key. The Authorization header must have the form "
            "'Authorization: Bearer YOUR_KEY'."
        )
    if len(given) > 1 or len(secret) > KEY_CHARS_MAX or not secret.isascii() or b" " in secret:
        raise InvalidKey("Incorrect API key provided: it is malformed. Check it for stray text.")
    return keys.authenticate(secret.decode("ascii"), now_us)
