"""`inferd check`, `inferd init`, `inferd config schema`: the file that everything else reads.

Results go to standard output, progress and problems to standard error. What is heavy is imported
where it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from inferd.cli.keys import CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from inferd.config.load import LoadedConfig
    from inferd.config.schema import EngineOptions
    from inferd.config.starting_point import Pace
    from inferd.provision.machine import Machine

config_app = typer.Typer(help="About the file inferd.toml itself.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add `check`, `init` and `config` to the command line."""
    parent.command()(init)
    parent.command()(check)
    parent.add_typer(config_app, name="config")


@config_app.callback()
def _config() -> None:
    """Make `schema` a command of its own, though it is the only one."""


@config_app.command()
def schema() -> None:
    """Print the JSON schema of inferd.toml, for editors that complete and check it.

    Write it to a file and name that in the first line of inferd.toml: #:schema ./schema.json
    """
    from inferd.config.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def check(
    config: ConfigPath = CONFIG,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Also read all weights, compare and show checksums.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell everything that is wrong with inferd.toml and the model folders it names.

    Exit code 1 if anything is. A running inferd is not touched: `inferd reload` applies the file.
    """
    from inferd.config.files import check_files
    from inferd.config.load import load_config
    from inferd.errors import ConfigError

    try:
        loaded = load_config(config)
        problems = check_files(loaded, checksums=checksums)
    except ConfigError as error:
        problems = error.problems
    else:
        if not problems:
            found = _summary(loaded, checksums=checksums)
            typer.echo(json.dumps({"ok": True} | found) if as_json else _told(config, found))
            return
    if as_json:
        typer.echo(json.dumps({"ok": False, "problems": problems}))
    else:
        typer.echo("\n".join(problems), err=True)
    raise typer.Exit(1)


def _summary(loaded: LoadedConfig, *, checksums: bool) -> dict[str, Any]:
    from inferd.config.checks import versions_of
    from inferd.config.files import folder_checksum
    from inferd.provision.machine import look

    versions = []
    for _, model, version in versions_of(loaded.config):
        about = {
            "name": f"{model.name}@{version.version}",
            "default": version.version == model.default_version,
            "device": version.engine.device,
            "workers": version.workers.count,
            "attached": len(version.attached),
            "gpus": _gpus(version.engine) * version.workers.count,
            "context_tokens_max": model.context_tokens_max,
            "ttft_ms": model.targets.ttft_ms,
            "tpot_ms": model.targets.tpot_ms,
        }
        if checksums and version.weights:
            about["checksum"] = folder_checksum(loaded.resolve(version.weights))
        versions.append(about)
    return {
        "versions": versions,
        "teams": [team.name for team in loaded.config.teams],
        "gpus_needed": sum(version["gpus"] for version in versions),
        "gpus_here": len(look().gpus),
    }


def _gpus(engine: EngineOptions) -> int:
    return engine.tensor_parallel if engine.device == "cuda" else 0


def _told(config: Path, found: dict[str, Any]) -> str:
    lines = [f"{config} is right."]
    for version in found["versions"]:
        own = f"{version['workers']} on {version['device']}" if version["workers"] else ""
        attached = f"{version['attached']} attached" if version["attached"] else ""
        lines.append(
            f"  {version['name']}: {' and '.join(filter(None, (own, attached)))};"
            f" {version['context_tokens_max']:,} tokens of context;"
            f" targets {version['ttft_ms']:,} ms to the first token, {version['tpot_ms']:,} ms each"
        )
        if "checksum" in version:
            lines.append(f"    checksum = \"{version['checksum']}\"")
    teams = ", ".join(found["teams"]) or "none, so nobody can use it yet"
    lines.append(f"  teams: {teams}")
    lines.append(f"  GPUs: {found['gpus_needed']} needed, {found['gpus_here']} here")
    return "\n".join(lines)


def init(
    config: Annotated[Path, typer.Option("--config", help="The file to write.")] = CONFIG,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing if the file exists.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    measure: Annotated[
        bool | None,
        typer.Option(help="Measure the model here, half a minute. [default: if it is installed]"),
    ] = None,
    device: Annotated[
        Literal["auto", "cuda", "cpu"],
        typer.Option(help="What to serve on. [default: GPUs if there are any]"),
    ] = "auto",
) -> None:
    """Write a commented inferd.toml for this machine.

    With GPUs, a starting point for models that fit them. Without, a small real model on the CPU,
    with the chunk size and the targets that it can meet here: the engine is started and measured.
    """
    from inferd.config.starting_point import UNMEASURED, first_file
    from inferd.provision.machine import look

    if config.exists() and (if_missing or not force):
        if if_missing:
            return
        _fail(f"{config} exists: --force replaces it, --config names another file")
    machine = look()
    gpus = machine.gpus if device != "cpu" else ()
    if device == "cuda" and not gpus:
        _fail("no NVIDIA GPU is seen here: see `inferd engine doctor`, or use --device cpu")
    text = first_file(gpus, machine.cores)
    pace = UNMEASURED if gpus or measure is False else _measured(config, text, must=bool(measure))
    if not gpus:
        text = first_file((), machine.cores, pace)
    _write(config, text, replace=force)
    typer.echo(_next_steps(config, machine, pace))
