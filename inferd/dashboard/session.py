"""Who is logged in: a signed cookie, and the token that every form must carry back.

Pure but for the clock and the random bytes it is given. The cookie holds when it ends and a random
name, signed with a key derived from the admin key: nothing is kept here, a changed admin key ends
every session, and a token is worth something in its own session only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

COOKIE: Final = "inferd_session"
SESSION_S: Final = 43_200
"""Half a day: then the admin key is asked for again."""
_NAME_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Session:
    """A login. `csrf_token` goes into its pages' forms and comes back with every action."""

    name: str
    csrf_token: str


class Sessions:
    """Opens sessions and recognises them."""

    def __init__(self, admin_key: str) -> None:
        self._admin_key = admin_key.encode()
        self._signing_key = hashlib.sha256(b"inferd dashboard\0" + self._admin_key).digest()

    def opens(self, admin_key: str) -> bool:
        """Whether this is the admin key, in a time that says nothing of how nearly it is."""
        return hmac.compare_digest(admin_key.strip().encode("utf-8", "replace"), self._admin_key)

    def cookie(self, now_s: float) -> str:
        """The value of a new session's cookie; it holds for `SESSION_S`."""
        name = secrets.token_hex(_NAME_BYTES)
        ends = str(int(now_s) + SESSION_S)
        return f"{ends}.{name}.{self._sign('session', ends, name)}"

    def find(self, cookie: str | None, now_s: float) -> Session | None:
        """The session of a cookie; None if it is none of ours, altered, or over."""
        parts = (cookie or "").split(".")
        if len(parts) != 3:  # noqa: PLR2004 - end, name, signature
            return None
        ends, name, signature = parts
        if not hmac.compare_digest(signature.encode(), self._sign("session", ends, name).encode()):
            return None
        if int(ends) <= now_s:
            return None
        return Session(name, self._sign("csrf", ends, name))

    @staticmethod
    def holds(session: Session, token: str | None) -> bool:
        """Whether a form that came back is one of this session's own."""
        return hmac.compare_digest(
            (token or "").encode("utf-8", "replace"), session.csrf_token.encode()
        )

    def _sign(self, *parts: str) -> str:
        message = "\0".join(parts).encode("utf-8", "replace")
        return hmac.new(self._signing_key, message, hashlib.sha256).hexdigest()
