"""`inferd check`, `inferd init`, `inferd config schema`: the file that everything else reads.

Results go to standard output, progress and problems to standard error. What is heavy is imported
where it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from inferd.config.load import LoadedConfig
    from inferd.config.starting_point import Pace
    from inferd.config.version import EngineOptions

CONFIG = Path("inferd.toml")
ConfigPath = Annotated[Path, typer.Option("--config", help="The inferd.toml to use.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

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
    """Print the JSON schema of inferd.toml, for editors to complete it.

    Write it to a file, and name that in the first line of inferd.toml:
    #:schema ./schema.json
    """
    from inferd.config.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def check(
    config: ConfigPath = CONFIG,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Also read all weights and compare their checksums.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell everything that is wrong with inferd.toml and the models it names.

    Exit code 1 if anything is. A running inferd is not touched by this:
    `inferd reload` applies the file.
    """
    from inferd.config.load import load_config
    from inferd.errors import ConfigError
    from inferd.provision.check_files import check_files

    try:
        loaded = load_config(config)
        problems = check_files(loaded, checksums=checksums)
    except ConfigError as error:
        problems = error.problems
    else:
        if not problems:
            found = _summary(loaded)
            typer.echo(json.dumps({"ok": True} | found) if as_json else _told(config, found))
            return
    if as_json:
        typer.echo(json.dumps({"ok": False, "problems": problems}))
    else:
        typer.echo("\n".join(problems), err=True)
    raise typer.Exit(1)


def _summary(loaded: LoadedConfig) -> dict[str, Any]:
    from inferd.config.checks import versions_of
    from inferd.provision.machine import look

    versions = [
        {
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
        for _, model, version in versions_of(loaded.config)
    ]
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
        typer.Option(help="Measure what the model can meet here. (default: if it is installed)"),
    ] = None,
    device: Annotated[
        Literal["auto", "cuda", "cpu"],
        typer.Option(help="What to serve on; auto: GPUs if there are any."),
    ] = "auto",
) -> None:
    """Write a commented inferd.toml for this machine.

    With GPUs, it is a starting point for models that fit them. Without, it
    serves a small real model on the CPU, with the chunk size and the targets
    that it can meet here: the engine is started for half a minute and measured.
    """
    from inferd.config.starting_point import UNMEASURED, first_file
    from inferd.provision.demo_model import DEMO
    from inferd.provision.machine import look

    if config.exists() and not force:
        if if_missing:
            return
        _fail(f"{config} exists: --force replaces it, --config names another file")
    machine = look()
    if device == "cuda" and not machine.gpus:
        _fail("no NVIDIA GPU is seen here: see `inferd engine doctor`, or use --device cpu")
    gpus = () if device == "cpu" else machine.gpus
    if gpus and measure:
        _fail("only the CPU's model is measured here: leave --measure out, or use --device cpu")

    def text(pace: Pace) -> str:
        return first_file(gpus, machine.cores, pace, DEMO.manifest.checksum)

    pace = UNMEASURED
    if not gpus and measure is not False:
        pace = _measured(config.absolute().parent, text(pace), must=measure is True)
    _write(config, text(pace), replace=force)
    _say_what_was_written(config, pace if not gpus else None)


def _measured(root: Path, text: str, *, must: bool) -> Pace:
    """What the model of this first file can meet here; conservative figures if that fails."""
    import asyncio
    import random

    from inferd.capacity.measure import measure
    from inferd.capacity.step_cost import pace
    from inferd.clock import utc_now
    from inferd.config.load import parse_config
    from inferd.config.starting_point import UNMEASURED
    from inferd.errors import ProvisionError
    from inferd.provision.check_files import check_files
    from inferd.provision.environment import EngineEnvironment
    from inferd.workers.spec import pools_from_config

    loaded = parse_config(root / "inferd.toml", text)
    spec = pools_from_config(loaded)[0].worker
    assert spec is not None, "the first file has weights"
    environment = EngineEnvironment(loaded.resolve(loaded.config.engine.environment))
    missing = [*environment.problems(), *check_files(loaded)]
    if not missing:
        try:
            with _reporting() as report:
                found = asyncio.run(measure(spec, environment, random.Random(), report))
            return pace(found, spec.context_tokens_max, f"{utc_now():%Y-%m-%d}")
        except ProvisionError as error:
            missing = [error.message]
    if must:
        _fail(missing[0])
    typer.echo(f"inferd: not measured: {missing[0]}", err=True)
    return UNMEASURED


@contextmanager
def _reporting() -> Iterator[Callable[[str], None]]:
    """Shows what goes on: one changing line in a terminal, else a line for each new thing."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("measuring") as status:
            yield status.update
        return
    told: set[str] = set()

    def tell(text: str) -> None:
        what = text.partition(" (")[0]
        if what not in told:
            told.add(what)
            typer.echo(what, err=True)

    yield tell


def _write(config: Path, text: str, *, replace: bool) -> None:
    """Whole or not at all, and never over a file that came meanwhile."""
    new = config.with_name(f".{config.name}.new")
    try:
        if replace:
            new.write_text(text, encoding="utf-8")
            new.replace(config)
        else:
            with config.open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        _fail(f"{config} was made meanwhile: it is left as it is")
    except OSError as error:
        with suppress(OSError):
            (new if replace else config).unlink()
        _fail(f"{config} cannot be written ({error.strerror}): name another with --config")


def _say_what_was_written(config: Path, pace: Pace | None) -> None:
    from inferd.config.starting_point import UNMEASURED

    typer.echo(f"{config} is written.")
    if pace is None:
        typer.echo("Put a model's folder where `weights` says, then run `inferd check`.")
        return
    known = "not measured: `inferd init --force` does" if pace is UNMEASURED else "measured"
    typer.echo(
        f"  prefill {pace.chunk_tokens:,} tokens a step; targets: first token in"
        f" {pace.ttft_ms:,} ms, {pace.tpot_ms:,} ms a token ({known})"
    )
    typer.echo("Next: `inferd serve`")


def _fail(message: str) -> NoReturn:
    typer.echo(f"inferd: {message}", err=True)
    raise typer.Exit(1)
