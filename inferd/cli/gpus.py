"""`inferd gpus`: the GPUs of this node, who has them, and which are not to be trusted."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

app = typer.Typer(help="Show the GPUs, lift a quarantine.", invoke_without_command=True)

Answer = dict[str, Any]


def register(parent: typer.Typer) -> None:
    """Add `gpus` to the command line."""
    parent.add_typer(app, name="gpus")


@app.callback()
def gpus(context: typer.Context, as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Show the GPUs of this node: which worker has them, memory, heat, quarantine.

    Without a running server, what the machine has.
    """
    if context.invoked_subcommand is not None:
        return
    from inferd.cli.server_place import ask_server, find_server

    runs = config.exists() and find_server(config).holder() is not None
    answer = ask_server(config, "GET", "gpus") if runs else _from_machine()
    if as_json:
        typer.echo(json.dumps(answer["data"]))
        return
    if not answer["data"]:
        typer.echo("There is no GPU that inferd may use; engines can run on the CPU.", err=True)
        return
    from inferd.cli.gpu_view import gpu_table
    from inferd.cli.tables import show

    show(gpu_table(answer["data"]))
    if not runs:
        typer.echo("No server runs; this is what the machine has.", err=True)
    if not answer["readable"]:
        typer.echo("NVIDIA's library cannot be used here, so more is not known.", err=True)


@app.command()
def lift(
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="As `inferd gpus` shows it.")],
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """End a device's quarantine, after its cause has been removed: engines may have it again."""
    from urllib.parse import quote

    from inferd.cli.server_place import ask_server

    answer = ask_server(config, "POST", f"gpus/{quote(gpu, safe='')}/lift")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"GPU {gpu} may be used again.", err=True)


def _from_machine() -> Answer:
    from inferd.api.gpu_admin import gpu_view
    from inferd.workers.gpus import Gpus
    from inferd.workers.nvml import GpuLostError

    found = Gpus.of_this_node()
    for name, info in found.infos.items():
        try:
            if found.library is not None:
                found.readings[name] = found.library.read(info.uuid)
        except GpuLostError:
            found.quarantined[name] = "the driver cannot reach it"
    data = [gpu_view(found, device, None) for device in found.devices]
    return {"readable": found.library is not None, "data": data}
