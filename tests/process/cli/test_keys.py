from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.key_commands import CONFIG, KeyCommands
from tests.process.cli import admin_server

ROOT = Path(__file__).parents[3]


@contextmanager
def serving(inferd: KeyCommands) -> Iterator[subprocess.Popen[str]]:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, admin_server.__file__, str(inferd.config)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert server.stdout.readline().strip().isdigit()
            yield server
        finally:
            server.stdin.close()
            server.wait(10)


@pytest.fixture(params=["without a server", "through the server"])
def inferd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyCommands]:
    """Every command does the same with and without a running server."""
    inferd = KeyCommands(tmp_path)
    if request.param == "without a server":
        yield inferd
    else:
        with serving(inferd):
            yield inferd


def test_the_secret_alone_is_on_standard_output(inferd: KeyCommands) -> None:
    result = inferd("keys", "create", "--team", "search", "--name", "ci", "--expires", "30d")
    assert result.exit_code == 0
    assert result.stdout.startswith("sk-inferd-")
    assert result.stdout.count("\n") == 1
    assert "for team search is made" in result.stderr
    assert "shown once" in result.stderr
    assert "sk-inferd-" not in result.stderr
    (key,) = inferd.json("keys", "list")
    assert (key["team"], key["name"], key["state"]) == ("search", "ci", "active")
    assert key["expires_at"] - key["created_at"] == pytest.approx(30 * 86_400, abs=2)


def test_a_key_as_json_has_its_secret_once(inferd: KeyCommands) -> None:
    key = inferd.json("keys", "create", "--team", "ads", "--models", "fast")
    assert key["secret"].startswith(key["prefix"])
    assert key["models"] == ["small"]
    listed = inferd("keys", "list", "--json").stdout
    assert key["secret"] not in listed
    assert "secret" not in json.loads(listed)[0]


def test_lists_for_people(inferd: KeyCommands) -> None:
    empty = inferd("keys", "list")
    assert empty.stdout == ""
    assert "inferd keys create" in empty.stderr
    key = inferd.json("keys", "create", "--team", "ads", "--name", "a rather long name")
    inferd.json("keys", "rotate", key["id"], "--grace", "1d")
    table = inferd("keys", "list").stdout
    for text in (key["id"], "ads", "a rather long name", "active", "never", "old secret until"):
        assert text in table
    inferd.json("keys", "revoke", key["id"])
    assert "revoked" in inferd("keys", "list", "--team", "ads").stdout
    assert inferd("keys", "list", "--team", "search").stdout == ""


def test_rotate_and_revoke(inferd: KeyCommands) -> None:
    key = inferd.json("keys", "create", "--team", "ads")
    result = inferd("keys", "rotate", key["id"], "--grace", "10m")
    assert result.stdout.startswith("sk-inferd-")
    assert result.stdout.strip() != key["secret"]
    assert "works for 10m more" in result.stderr
    assert "refused now" in inferd("keys", "rotate", key["id"]).stderr
    assert "refused from now on" in inferd("keys", "revoke", key["id"]).stderr
    again = inferd("keys", "rotate", key["id"])
    assert again.exit_code == 1
    assert "it is revoked" in again.stderr


def test_ensure_makes_a_key_only_when_the_file_has_none(
    inferd: KeyCommands, tmp_path: Path
) -> None:
    file = tmp_path / "key"

    def ensure() -> Any:
        return inferd.json("keys", "ensure", "--team", "search", "--file", str(file))

    first = ensure()
    assert first["created"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    assert secret.startswith(first["prefix"])
    assert "secret" not in first
    again = ensure()
    assert not again["created"]
    assert again["id"] == first["id"]
    assert file.read_text().strip() == secret

    inferd.json("keys", "revoke", first["id"])
    assert ensure()["created"]
    assert file.read_text().strip() != secret
    assert [path.name for path in tmp_path.iterdir() if "key" in path.name] == ["key"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("keys", "create", "--team", "adds"), "no team 'adds' in inferd.toml. Teams: ads, search"),
        (("keys", "create", "--team", "ads", "--models", "big"), "Models: small"),
        (("keys", "rotate", "key_x"), "`inferd keys list` shows all"),
        (("keys", "revoke", "key_x"), "No key has the id 'key_x'"),
        (("keys", "list", "--team", "nobody"), "No team 'nobody' in inferd.toml"),
        (("teams", "show", "nobody"), "Teams: search, ads."),
    ],
)
def test_a_refusal_says_what_to_do(
    inferd: KeyCommands, arguments: tuple[str, ...], message: str
) -> None:
    result = inferd(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_teams(inferd: KeyCommands) -> None:
    inferd.json("keys", "create", "--team", "search")
    search, ads = inferd.json("teams", "list")
    assert (search["name"], search["weight"], search["active_keys"]) == ("search", 2, 1)
    assert ads["active_keys"] == 0
    table = inferd("teams", "list").stdout
    assert "20,000 (burst 200,000)" in table
    assert "no limit" in table
    team = inferd.json("teams", "show", "search")
    assert [key["team"] for key in team["keys"]] == ["search"]
    shown = inferd("teams", "show", "search").stdout
    assert team["keys"][0]["id"] in shown
    assert "inferd keys create --team ads" in inferd("teams", "show", "ads").stderr


def test_the_servers_own_port_is_used_even_if_the_file_names_another(tmp_path: Path) -> None:
    inferd = KeyCommands(tmp_path)
    with serving(inferd):
        inferd.config.write_text(CONFIG.format(port=1))
        assert inferd.json("keys", "list") == []


def test_a_replaced_admin_key_is_told(tmp_path: Path) -> None:
    inferd = KeyCommands(tmp_path)
    with serving(inferd):
        (inferd.state_dir / "admin.key").write_text("sk-inferd-admin-" + "x" * 43)
        result = inferd("keys", "list")
    assert result.exit_code == 1
    assert "does not take the key of" in result.stderr
    assert "restart inferd" in result.stderr


def test_a_server_that_does_not_answer_is_told(tmp_path: Path) -> None:
    inferd = KeyCommands(tmp_path, port=free_port())
    with serving(inferd) as server:
        record = inferd.state_dir / "inferd.lock"
        record.write_text(f'{{"pid": {server.pid}, "purpose": "inferd serve"}}')
        inferd.config.write_text(CONFIG.format(port=free_port()))
        result = inferd("keys", "list")
        assert result.exit_code == 1
        assert "does not answer at http://127.0.0.1:" in result.stderr
        assert "admin_listen" in result.stderr


def test_another_program_on_the_port_is_told(tmp_path: Path) -> None:
    inferd = KeyCommands(tmp_path)
    with serving(inferd) as server, stranger() as port:
        record = inferd.state_dir / "inferd.lock"
        record.write_text(
            f'{{"pid": {server.pid}, "purpose": "inferd serve", "admin": "127.0.0.1:{port}"}}'
        )
        result = inferd("keys", "list")
    assert result.exit_code == 1
    assert "is not inferd's admin API (HTTP 501)" in result.stderr


@contextmanager
def stranger() -> Iterator[int]:
    """A web server that is not inferd."""
    program = (
        "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler); "
        "print(s.server_port, flush=True); s.serve_forever()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
