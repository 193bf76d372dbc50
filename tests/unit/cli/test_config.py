"""`inferd init`, `check` and `config schema`, as a person or a script uses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from inferd.capacity.step_cost import Measured, StepCost
from inferd.cli import config as commands
from inferd.config.json_schema import json_schema
from inferd.config.load import load_config
from inferd.errors import ProvisionError
from inferd.provision import check_files, environment, machine
from inferd.provision.machine import Machine

Run = Callable[..., Result]

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in an empty folder of a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    with_gpus(monkeypatch, 0)
    app = typer.Typer()
    commands.register(app)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return invoke


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    here = Machine((H100,) * count, None, "a processor", 2, amx=False, memory_bytes=0)
    monkeypatch.setattr(machine, "look", lambda: here)


def with_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the engine and the demo model were installed."""
    monkeypatch.setattr(environment.EngineEnvironment, "problems", lambda _: [])
    monkeypatch.setattr(check_files, "check_files", lambda *_, **__: [])


def with_figures(
    monkeypatch: pytest.MonkeyPatch,
    outcome: Measured | ProvisionError,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    async def measure(*_: object) -> Measured:
        meanwhile()
        if isinstance(outcome, ProvisionError):
            raise outcome
        return outcome

    monkeypatch.setattr("inferd.capacity.measure.measure", measure)


FIGURES = Measured(0.04, 0.1, StepCost(fixed_s=0.05, new_s=1.3, position_s=0.65), 440.0)


def test_init_writes_a_file_that_is_right(run: Run, tmp_path: Path) -> None:
    result = run("init", "--no-measure")
    assert result.exit_code == 0
    assert result.stdout.startswith("inferd.toml is written.\n")
    loaded = load_config(tmp_path / "inferd.toml", {})
    assert loaded.config.models[0].name == "smollm2-135m"
    assert loaded.config.models[0].versions[0].checksum is not None
    assert list(tmp_path.iterdir()) == [tmp_path / "inferd.toml"]


def test_init_says_why_nothing_was_measured(run: Run) -> None:
    result = run("init")
    assert result.exit_code == 0
    assert "not measured: no engine is installed in" in result.stderr
    assert "run `inferd engine install`" in result.stderr
    assert "# Not measured" in Path("inferd.toml").read_text()


def test_init_fails_when_a_measure_is_asked_for_and_cannot_be(run: Run, tmp_path: Path) -> None:
    result = run("init", "--measure")
    assert result.exit_code == 1
    assert "run `inferd engine install`" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_init_writes_what_was_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch)
    with_figures(monkeypatch, FIGURES)
    result = run("init")
    assert result.exit_code == 0
    (model,) = load_config(Path("inferd.toml"), {}).config.models
    assert model.versions[0].engine.chunked_prefill_tokens == 256
    assert model.targets.tpot_ms == 660  # (0.1 + 0.05 + 0.3328 + 0.0426) x 1.25
    text = Path("inferd.toml").read_text()
    assert "# Measured here on 20" in text
    assert "40 ms with 1 stream, 100 ms with 8" in text
    assert "256 tokens a step" in result.stdout
    assert "(measured)" in result.stdout


def test_init_goes_on_when_the_engine_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch)
    with_figures(monkeypatch, ProvisionError("the engine exited with code 3. See the doctor"))
    result = run("init")
    assert result.exit_code == 0
    assert "not measured: the engine exited with code 3" in result.stderr
    assert run("init", "--force", "--measure").exit_code == 1


def test_init_writes_for_the_gpus_that_are_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 8)
    result = run("init")
    assert result.exit_code == 0
    assert "Put a model's folder where `weights` says" in result.stdout
    (model,) = load_config(Path("inferd.toml"), {}).config.models
    assert (model.name, model.versions[0].workers.count) == ("chat-8b", 8)
    assert run("init", "--force", "--device", "cpu", "--no-measure").exit_code == 0
    assert load_config(Path("inferd.toml"), {}).config.models[0].name == "smollm2-135m"
    assert "only the CPU's model is measured" in run("init", "--force", "--measure").stderr


def test_init_for_gpus_that_are_not_here(run: Run, tmp_path: Path) -> None:
    result = run("init", "--device", "cuda")
    assert result.exit_code == 1
    assert "no NVIDIA GPU is seen here: see `inferd engine doctor`" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_init_leaves_a_file_that_exists(run: Run) -> None:
    Path("inferd.toml").write_text("mine")
    result = run("init", "--no-measure")
    assert result.exit_code == 1
    assert "inferd.toml exists: --force replaces it" in result.stderr
    quiet = run("init", "--if-missing")
    assert (quiet.exit_code, quiet.output) == (0, "")
    assert Path("inferd.toml").read_text() == "mine"


def test_init_replaces_a_file_when_forced(run: Run, tmp_path: Path) -> None:
    Path("inferd.toml").write_text("mine")
    assert run("init", "--no-measure", "--force").exit_code == 0
    assert load_config(Path("inferd.toml"), {}).config.models
    assert list(tmp_path.iterdir()) == [tmp_path / "inferd.toml"]


def test_init_leaves_a_file_that_came_while_it_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_engine(monkeypatch)

    with_figures(monkeypatch, FIGURES, meanwhile=lambda: Path("inferd.toml").write_text("theirs"))
    result = run("init")
    assert result.exit_code == 1
    assert "was made meanwhile" in result.stderr
    assert Path("inferd.toml").read_text() == "theirs"


def test_init_writes_where_it_is_told(run: Run, tmp_path: Path) -> None:
    assert run("init", "--no-measure", "--config", "other.toml").exit_code == 0
    assert (tmp_path / "other.toml").exists()
    result = run("init", "--no-measure", "--config", "no/such/folder.toml")
    assert result.exit_code == 1
    assert "cannot be written (No such file or directory)" in result.stderr
    (tmp_path / "file").write_text("")
    result = run("init", "--no-measure", "--config", "file/inferd.toml")
    assert "cannot be written (Not a directory)" in result.stderr


def test_check_says_what_is_right(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", "--no-measure")
    with_engine(monkeypatch)
    result = run("check")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "inferd.toml is right.",
        (
            "  smollm2-135m@1: 1 on cpu; 4,096 tokens of context; targets 180,000 ms to the first"
            " token, 1,000 ms each"
        ),
        "  teams: demo",
        "  GPUs: 0 needed, 0 here",
    ]


def test_check_counts_gpus_and_workers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch)
    Path("inferd.toml").write_text(
        """
        [[models]]
        name = "a"
        default_version = "1"
        context_tokens_max = 4_096
        output_tokens_max = 1_024
        [[models.versions]]
        version = "1"
        weights = "a"
        engine = { tensor_parallel = 4 }
        workers = { count = 2 }
        attached = [{ url = "http://h:1" }]
        """
    )
    result = run("check")
    assert "a@1: 2 on cuda and 1 attached;" in result.stdout
    assert "teams: none, so nobody can use it yet" in result.stdout
    assert "GPUs: 8 needed, 0 here" in result.stdout
    found = json.loads(run("check", "--json").stdout)
    assert found["ok"] is True
    assert (found["gpus_needed"], found["gpus_here"], found["teams"]) == (8, 0, [])
    assert found["versions"][0]["workers"] == 2


def test_check_tells_all_problems_and_fails(run: Run) -> None:
    Path("inferd.toml").write_text("[server]\nlisen = 1\n[log]\n")
    result = run("check")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "inferd.toml:1: needs at least one [[models]]",
        'inferd.toml:2: server: unknown key "lisen" (did you mean "listen"?)',
        'inferd.toml:3: unknown key "log" (did you mean "logs"?)',
    ]
    as_json = run("check", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout) == {"ok": False, "problems": result.stderr.splitlines()}


def test_check_looks_at_the_model_folders(run: Run) -> None:
    run("init", "--no-measure")
    result = run("check")
    assert result.exit_code == 1
    assert "inferd.toml:29: models[0].versions[0].weights:" in result.stderr
    assert "does not exist: put the model there" in result.stderr


def test_check_of_a_file_that_is_not_there_says_how_to_make_one(run: Run) -> None:
    result = run("check")
    assert result.exit_code == 1
    assert result.stderr == (
        "inferd.toml: no such file; `inferd init --config inferd.toml` writes one\n"
    )


def test_the_schema_is_printed_whole(run: Run) -> None:
    result = run("config", "schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()


def test_the_schema_knows_what_editors_complete() -> None:
    schema = json_schema()
    engine = schema["definitions"]["EngineOptions"]
    assert engine["properties"]["device"]["enum"] == ["cuda", "cpu"]
    assert engine["additionalProperties"] is False
    assert engine["properties"]["kv_tokens_max"]["type"] == "integer"
    assert "null" not in json.dumps(schema)
    for definition in (schema, *schema["definitions"].values()):
        for key, field in definition["properties"].items():
            assert field.get("description"), key
