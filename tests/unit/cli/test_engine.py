"""`inferd engine` as it is typed. Goal: exit codes and JSON for scripts, words for people."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.progress import Progress as Bar
from typer.testing import CliRunner

from inferd import clock
from inferd.cli import engine
from inferd.cli.engine_progress import DrawnProgress, PlainProgress, watch
from inferd.provision.record import Step


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    engine.register(made)
    return made


def test_the_doctor_of_nothing_exits_with_1(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["--directory", str(tmp_path), "--models-directory", str(tmp_path)]
    done = CliRunner().invoke(app, ["engine", "doctor", "--json", *arguments])
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["can_serve"] is False
    assert any("inferd engine install" in (f["next_step"] or "") for f in document["findings"])


def test_the_doctor_tells_people_the_same(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["--directory", str(tmp_path), "--models-directory", str(tmp_path)]
    done = CliRunner().invoke(app, ["engine", "doctor", *arguments])
    assert done.exit_code == 1
    assert "no engine is installed in" in done.stdout
    assert "next: run `inferd engine install`" in done.stdout
    assert "LoRA adapters" in done.stdout
    assert "There are problems: each says what to do next." in done.stdout


def test_a_manifest_is_written_and_its_checksum_printed(app: typer.Typer, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    done = CliRunner().invoke(app, ["engine", "manifest", str(tmp_path)])
    assert done.exit_code == 0
    assert done.stdout.startswith('checksum = "sha256:')
    as_json = CliRunner().invoke(app, ["engine", "manifest", "--json", str(tmp_path)])
    assert json.loads(as_json.stdout)["checksum"] in done.stdout
    assert (tmp_path / "manifest.json").exists()


def test_both_devices_at_once_are_a_mistake(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["engine", "install", "--cpu", "--cuda", "--directory", str(tmp_path / "engine")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert not (tmp_path / "engine").exists()


def test_plain_progress_tells_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime(2026, 11, 30, tzinfo=UTC)
    now = [at]
    monkeypatch.setattr(clock, "utc_now", lambda: now[0])
    progress = PlainProgress()
    progress.started(Step.PACKAGES, "3 packages")
    for second, text in ((1, "alpha"), (16, "beta"), (17, "gamma"), (40, ""), (41, "delta")):
        now[0] = at + timedelta(seconds=second)
        progress.detail(Step.PACKAGES, text)
    progress.note("a GPU is here")
    now[0] = at + timedelta(seconds=50)
    progress.finished(Step.PACKAGES, "3 packages")
    assert capsys.readouterr().err.splitlines() == [
        "3 packages ...",
        "  packages, 16 s: beta",
        "  packages, 41 s: delta",
        "a GPU is here",
        "3 packages: done in 50 s",
    ]


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with watch() as progress:
        assert isinstance(progress, PlainProgress)


def test_a_terminal_gets_a_line_for_each_step() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    bar = Bar("{task.description}", "{task.fields[detail]}", console=console, auto_refresh=False)
    with bar:
        drawn = DrawnProgress(bar)
        drawn.started(Step.PACKAGES, "3 packages")
        drawn.started(Step.MODEL, "model")
        drawn.detail(Step.PACKAGES, "alpha [1 MB]")
        drawn.note("a note")
        drawn.finished(Step.PACKAGES, "all packages")
        drawn.failed()
    shown = screen.getvalue()
    assert "a note" in shown
    assert "all packages" in shown
    assert "stopped" in shown
