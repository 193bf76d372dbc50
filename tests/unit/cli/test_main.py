from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import inferd
from inferd.cli import main
from inferd.errors import ConfigError, InferdError, ProvisionError
from tests.fakes.engines import REPOSITORY


def _name_of(callback: object) -> str:
    return str(getattr(callback, "__name__", ""))


def test_every_command_is_on_the_first_screen() -> None:
    app = main.make_app()
    names = {command.name or _name_of(command.callback) for command in app.registered_commands}
    names |= {str(group.name) for group in app.registered_groups}
    assert names == {name for panel in main.PANELS.values() for name in panel}
    screen = CliRunner().invoke(app, ["--help"]).stdout
    assert all(f"\n  {name} " in screen for name in names)
    assert "..." not in screen, "a summary is too long for its line"


def test_every_command_tells_all_about_itself() -> None:
    app = main.make_app()
    for names in main.PANELS.values():
        for name in names:
            done = CliRunner().invoke(app, [name, "--help"])
            assert done.exit_code == 0, name
            assert "Usage: inferd" in done.stdout.replace("Usage: root", "Usage: inferd")


def test_options_of_the_first_screen_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    app = main.make_app()
    assert CliRunner().invoke(app, ["--version"]).stdout == f"inferd {inferd.__version__}\n"
    assert CliRunner().invoke(app, ["-h"]).exit_code == 0
    # It asks who started it, and a test may have been started by anybody.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    done = CliRunner().invoke(app, ["--show-completion"], prog_name="inferd")
    assert done.exit_code == 0
    assert "_INFERD_COMPLETE=complete_bash" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["status", "--nope"], "No such option"),
        (["status", "--interval", "0"], "0.1"),
        (["logs"], "Missing argument"),
        (["logs", "w", "-n", "-1"], "Invalid value"),
        (["chat", "--temperature", "9", "hi"], "less than or equal to 2"),
    ],
)
def test_a_wrong_call_is_a_usage_error(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main.make_app(), arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_call_without_a_command_shows_the_first_screen() -> None:
    done = CliRunner().invoke(main.make_app(), [])
    assert done.exit_code == 2
    assert "The first five minutes" in done.stdout


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProvisionError("no engine\nrun this"), "inferd: no engine\ninferd: run this\n"),
        (
            ConfigError(["inferd.toml:3: a", "inferd.toml:9: b"]),
            "inferd.toml:3: a\ninferd.toml:9: b\n",
        ),
    ],
)
def test_a_failure_is_told_in_words(
    error: InferdError,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find_server(_: Path) -> None:
        raise error

    monkeypatch.setattr("inferd.cli.server_place.find_server", find_server)
    monkeypatch.setattr("sys.argv", ["inferd", "status"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == said


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its path."""
    below = getattr(command, "commands", {})
    for name, child in below.items():
        yield from _commands(child, f"{path} {name}".strip())
    if not below:
        yield path, command


def test_every_command_and_option_is_documented() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text()
    for path, command in _commands(typer.main.get_command(main.make_app())):
        assert f"`inferd {path}" in text, path
        for option in (opt for param in command.params for opt in param.opts):
            if option.startswith("--") and option != "--help":
                assert option in text, f"{path} {option}"
