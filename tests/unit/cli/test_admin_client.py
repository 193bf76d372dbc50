from __future__ import annotations

import pytest

from inferd.cli.admin_client import _reachable


@pytest.mark.parametrize(
    ("listen", "target"),
    [
        ("127.0.0.1:8081", "127.0.0.1:8081"),
        ("localhost:8081", "localhost:8081"),
        ("0.0.0.0:8081", "127.0.0.1:8081"),
        ("[::1]:8081", "[::1]:8081"),
        ("[::]:8081", "[::1]:8081"),
    ],
)
def test_a_listening_address_becomes_one_to_connect_to(listen: str, target: str) -> None:
    assert _reachable(listen) == target
