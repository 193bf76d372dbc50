"""`inferd engine`: installs the engine that runs models, and says what it can do here.

Results go to standard output, progress and problems to standard error. What is heavy is imported
where it is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferd.cli.config import AsJson

if TYPE_CHECKING:
    from inferd.provision.install import InstallReport
    from inferd.provision.recipes import Device

app = typer.Typer(help="Install and examine the engine that runs models.", no_args_is_help=True)

DIRECTORY = Path(".inferd/engine")
MODELS = Path(".inferd/models")
Directory = Annotated[Path, typer.Option("--directory", help="The engine's environment.")]
Models = Annotated[Path, typer.Option("--models-directory", help="Where the demo model lies.")]


def register(parent: typer.Typer) -> None:
    """Add `engine` to the command line."""
    parent.add_typer(app, name="engine")


@app.command()
def install(
    cpu: Annotated[
        bool, typer.Option("--cpu", help="The engine for machines without GPU.")
    ] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="The engine for NVIDIA GPUs.")] = False,
    directory: Directory = DIRECTORY,
    models_directory: Models = MODELS,
    torch_index: Annotated[
        str | None,
        typer.Option("--torch-index", metavar="URL", help="Where torch's CPU build comes from."),
    ] = None,
    extras: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="EXTRA", help="Also install `split`: prefill and decode apart."
        ),
    ] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Leave out the demo model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Install SGLang in an environment of its own, and a small demo model.

    Without --cpu or --cuda it is the engine for what this machine has. A
    second run repairs what is broken, and does nothing when nothing is. An
    interrupted one is continued by running it again.
    """
    from inferd.cli.engine_progress import watch
    from inferd.provision.demo_model import DEMO
    from inferd.provision.environment import EngineEnvironment
    from inferd.provision.install import InstallRequest
    from inferd.provision.install import install as install_engine

    request = InstallRequest(
        models=models_directory.absolute(),
        device=_device(cpu=cpu, cuda=cuda),
        torch_index=torch_index,
        model=None if no_model else DEMO,
        extras=_extras(extras or []),
    )
    with watch() as progress:
        report = install_engine(EngineEnvironment(directory), request, progress)
    typer.echo(json.dumps(_document(report)) if as_json else _told(report))


@app.command()
def doctor(
    directory: Directory = DIRECTORY,
    models_directory: Models = MODELS,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also read every file and load the engine (half a minute)."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what is installed, what it can do on this machine, and what is missing.

    Exit code 1 if engines cannot serve from here.
    """
    from inferd.provision.doctor import examine
    from inferd.provision.environment import EngineEnvironment

    diagnosis = examine(EngineEnvironment(directory), models_directory.absolute(), deep=deep)
    if as_json:
        typer.echo(json.dumps(diagnosis.document()))
    else:
        from inferd.cli.engine_tables import show_diagnosis

        show_diagnosis(diagnosis)
    if not diagnosis.can_serve:
        raise typer.Exit(1)


@app.command()
def manifest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model's folder.")],
    as_json: AsJson = False,
) -> None:
    """Write down what a model's folder holds, and print the checksum of it all.

    Put the checksum into inferd.toml, under the version: its files are
    compared with it before they are served.
    """
    from inferd.errors import ProvisionError
    from inferd.provision.model_folder import MANIFEST, write_manifest

    try:
        written = write_manifest(folder)
    except OSError as error:
        place = error.filename or folder
        raise ProvisionError(
            f"{place}: {error.strerror or error}. Correct that and run it again"
        ) from error
    if as_json:
        document = {"file": str(folder / MANIFEST), "checksum": written.checksum}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f'checksum = "{written.checksum}"')


def _extras(names: list[str]) -> frozenset[str]:
    from inferd.provision.recipes import EXTRAS

    for name in names:
        if name not in EXTRAS:
            raise typer.BadParameter(f"--with {name}: there is only {', '.join(EXTRAS)}")
    return frozenset(names)


def _device(*, cpu: bool, cuda: bool) -> Device | None:
    from inferd.provision.recipes import Device

    if cpu and cuda:
        raise typer.BadParameter("--cpu and --cuda exclude each other")
    if cpu:
        return Device.CPU
    return Device.CUDA if cuda else None


def _document(report: InstallReport) -> dict[str, object]:
    return {
        "changed": bool(report.steps),
        "steps": report.steps,
        "device": report.device,
        "directory": str(report.directory),
        "python": report.python,
        "versions": report.versions,
        "model": str(report.model) if report.model else None,
        "proven": report.proven,
    }


def _told(report: InstallReport) -> str:
    what = (
        f"SGLang {report.versions['sglang']} for {report.device} (torch "
        f"{report.versions['torch']}, Python {report.python}) in {report.directory}"
    )
    lines = [what if report.steps else f"{what}: nothing to do, all is in place"]
    if report.model is not None:
        lines.append(f"model {report.model}")
    return "\n".join(lines)
