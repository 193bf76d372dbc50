from __future__ import annotations

import sys
from pathlib import Path

import pytest

from inferd.cli import hello
from inferd.errors import StartError


def test_a_key_file_must_hold_a_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for content in (b"", b"two words", b"\xff\xfe", b"line\nline"):
        path.write_bytes(content)
        with pytest.raises(StartError, match="holds no API key"):
            hello.read_key_file(path)
    path.write_bytes(b"  sk-inferd-abc\n")
    assert hello.read_key_file(path) == "sk-inferd-abc"
    with pytest.raises(StartError, match="Is a directory"):
        hello.read_key_file(tmp_path)


def test_the_command_is_named_as_another_shell_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/inferd"), "serve"])
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)
    assert hello.command_name() == ".venv/bin/inferd"
    monkeypatch.chdir("/")
    assert hello.command_name() == f"{tmp_path}/.venv/bin/inferd".removeprefix("/")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / ".venv"))
    assert hello.command_name() == "inferd"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/inferd"])
    assert hello.command_name() == "inferd"
