from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.key_commands import KeyCommands


@pytest.fixture
def alone(tmp_path: Path) -> KeyCommands:
    return KeyCommands(tmp_path)


def test_ensure_leaves_a_file_alone_that_is_something_else(
    alone: KeyCommands, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("my notes")
    result = alone("keys", "ensure", "--team", "ads", "--file", str(file))
    assert result.exit_code == 1
    assert "no key of inferd" in result.stderr
    assert file.read_text() == "my notes"

    file.write_text(alone.secret("keys", "create", "--team", "search"))
    result = alone("keys", "ensure", "--team", "ads", "--file", str(file))
    assert result.exit_code == 1
    assert "of team 'search', not of 'ads'" in result.stderr


def test_ensure_leaves_no_key_behind_that_it_cannot_write(
    alone: KeyCommands, tmp_path: Path
) -> None:
    missing = tmp_path / "absent" / "key"
    result = alone("keys", "ensure", "--team", "ads", "--file", str(missing))
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr
    assert alone.json("keys", "list") == []

    folder = tmp_path / "folder"
    folder.mkdir()
    assert alone("keys", "ensure", "--team", "ads", "--file", str(folder)).exit_code == 1
    assert alone.json("keys", "list") == []


@pytest.mark.parametrize("expires", ["0", "30", "d", "-1d", "1.5h", "3 days"])
def test_a_wrong_duration_is_a_usage_error(alone: KeyCommands, expires: str) -> None:
    result = alone("keys", "create", "--team", "ads", "--expires", expires)
    assert result.exit_code == 2
    assert "--expires" in result.stderr
    assert "30d" in result.stderr


def test_a_broken_config_is_told(alone: KeyCommands) -> None:
    alone.config.write_text("[server]\nlisten = 1\n")
    result = alone("keys", "list")
    assert result.exit_code == 1
    assert "inferd.toml:2" in result.stderr


def test_a_damaged_database_is_told(alone: KeyCommands) -> None:
    alone.secret("keys", "create", "--team", "ads")
    (alone.state_dir / "inferd.db").write_bytes(b"no database " * 999)
    result = alone("keys", "list")
    assert result.exit_code == 1
    assert "restore it from a backup" in result.stderr


def test_what_is_stored_is_not_the_secret(alone: KeyCommands) -> None:
    secret = alone.secret("keys", "create", "--team", "ads")
    with closing(sqlite3.connect(alone.state_dir / "inferd.db")) as connection:
        dump = "\n".join(connection.iterdump())
    assert secret[:18] in dump
    assert secret[18:] not in dump


def test_help_teaches(alone: KeyCommands) -> None:
    text = alone("keys", "create", "--help").stdout
    assert "only a hash" in " ".join(text.split())
