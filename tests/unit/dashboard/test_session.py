"""A session is the admin's alone, ends by itself, and its forms are its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferd.dashboard.session import SESSION_S, Sessions

KEY = "sk-inferd-admin-" + "k" * 43
NOW_S = 1_796_000_000.5


def test_a_session_holds_until_its_end() -> None:
    sessions = Sessions(KEY)
    cookie = sessions.cookie(NOW_S)
    assert sessions.find(cookie, NOW_S) is not None
    assert sessions.find(cookie, NOW_S + SESSION_S - 1) is not None
    assert sessions.find(cookie, NOW_S + SESSION_S) is None


def test_only_the_admin_key_opens_one() -> None:
    sessions = Sessions(KEY)
    assert sessions.opens(KEY)
    assert sessions.opens(f" {KEY}\n")  # as it is pasted
    for wrong in ("", KEY[:-1], KEY + "k", KEY.upper(), "\udc80", "é"):
        assert not sessions.opens(wrong)


def test_another_admin_key_ends_every_session() -> None:
    cookie = Sessions(KEY).cookie(NOW_S)
    assert Sessions(KEY[:-1] + "x").find(cookie, NOW_S) is None


@given(st.text(max_size=80) | st.none(), st.data())
def test_no_other_cookie_is_a_session(made_up: str | None, data: st.DataObject) -> None:
    sessions = Sessions(KEY)
    assert sessions.find(made_up, NOW_S) is None
    cookie = sessions.cookie(NOW_S)
    at = data.draw(st.integers(0, len(cookie) - 1))
    altered = cookie[:at] + ("0" if cookie[at] != "0" else "1") + cookie[at + 1 :]
    assert sessions.find(altered, NOW_S) is None


def test_a_token_is_worth_something_in_its_own_session_only() -> None:
    sessions = Sessions(KEY)
    mine = sessions.find(sessions.cookie(NOW_S), NOW_S)
    other = sessions.find(sessions.cookie(NOW_S), NOW_S)
    assert mine is not None
    assert other is not None
    assert sessions.holds(mine, mine.csrf_token)
    for wrong in (other.csrf_token, "", None, mine.name):
        assert not sessions.holds(mine, wrong)
