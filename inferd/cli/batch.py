"""`inferd batch`: run a file of requests in the gaps of the day, and look after it.

Ids and results go to standard output, what is said about them to standard error. What is heavy is
imported where it is used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferd.cli.api_access import FIRST_KEY, KEY_VARIABLE
from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.cli.failure import FAILED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from inferd.batch.lines import Checked
    from inferd.cli.batch_client import BatchClient

Batch = dict[str, Any]

Key = Annotated[
    str | None,
    typer.Option(help=f"API key, which others can see in `ps`. (environment: {KEY_VARIABLE})"),
]
KeyFile = Annotated[
    Path | None, typer.Option(help=f"File that holds the key. (default: {FIRST_KEY})")
]
BaseUrl = Annotated[str | None, typer.Option(help="(default: http://ADDRESS/v1, by inferd.toml)")]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="As `inferd batch list` shows it.")]
InputFile = Annotated[
    Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="Lines of JSON.")
]
LINE_BYTES_MAX = 4_194_304
"""Where no inferd.toml says another `body_bytes_max`."""

app = typer.Typer(help="Run files of requests in the gaps of the day.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add `batch` to the command line."""
    parent.add_typer(app, name="batch")


@app.command()
def submit(  # noqa: PLR0917 - options, given by name
    file: InputFile,
    window: Annotated[str, typer.Option(help="Done within: 1h to 7d.")] = "24h",
    endpoint: Annotated[
        str | None, typer.Option(help="(default: the url of the first line)")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="A note as key=value; may be given again.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Keep the results this long: 1h to 30d.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key never makes a second batch.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress until it ends.")] = False,
    key: Key = None,
    key_file: KeyFile = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Check a file, upload it, and run it as a batch. Its id goes to standard output.

    Whether it should be done in time is said once inferd has checked it. With --wait the exit code
    is 1 unless every line has completed.
    """
    from inferd.cli.durations import parse_duration

    asked = endpoint or _first_url(file)
    checked = _checked(file, asked, None, LINE_BYTES_MAX)
    if checked.errors:
        _tell_errors(file, checked, as_json=as_json)
        raise typer.Exit(FAILED)
    body: dict[str, Any] = {"endpoint": asked, "completion_window": window}
    if metadata:
        body["metadata"] = dict(_pair(one) for one in metadata)
    if expires is not None:
        try:
            seconds = int(parse_duration(expires))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--expires") from error
        body["output_expires_after"] = {"anchor": "created_at", "seconds": seconds}

    async def work(client: BatchClient) -> Batch:
        from inferd.cli.batch_display import followed, uploaded

        body["input_file_id"] = await uploaded(client, file)
        batch = await client.create(body, idempotency_key)
        if wait:
            typer.echo(batch["id"], err=True)
            return await followed(client, batch["id"])
        if not as_json:
            typer.echo(batch["id"])
        return await client.checked(batch["id"])

    batch = _run(work, key, key_file, base_url, config)
    _show_submitted(batch, wait=wait, as_json=as_json)


@app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 20,
    key: Key = None,
    key_file: KeyFile = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show the team's batches, newest first."""
    found = _run(lambda client: client.newest(limit), key, key_file, base_url, config)
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        typer.echo("No batches yet. Make one: inferd batch submit FILE", err=True)
        return
    from inferd.cli.batch_view import batch_table
    from inferd.cli.tables import show as show_table

    show_table(batch_table(found))


@app.command()
def show(
    batch_id: BatchId,
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress until it ends.")] = False,
    key: Key = None,
    key_file: KeyFile = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show one batch in full."""
    work = _following(lambda client: client.get(batch_id), wait=wait)
    _show(_run(work, key, key_file, base_url, config), as_json=as_json)


@app.command()
def cancel(
    batch_id: BatchId,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    key: Key = None,
    key_file: KeyFile = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Run no more of a batch. What is done stays, and is billed."""
    work = _following(lambda client: client.cancel(batch_id), wait=wait)
    _show(_run(work, key, key_file, base_url, config), as_json=as_json)


@app.command()
def download(
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="(default: ID_output.jsonl)")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", help="(default: ID_error.jsonl)")
    ] = None,
    key: Key = None,
    key_file: KeyFile = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Download the results of a batch that has ended: its output file and its error file."""

    async def work(client: BatchClient) -> list[dict[str, Any]]:
        batch = await client.get(batch_id)
        written = []
        for kind, given in (("output", output), ("error", errors)):
            if (file_id := batch[f"{kind}_file_id"]) is not None:
                path = given or Path(f"{batch_id}_{kind}.jsonl")
                size = await client.download(file_id, path)
                written.append({"kind": kind, "file_id": file_id, "path": str(path), "bytes": size})
        if not written:
            typer.echo(f"{batch_id} is {batch['status']} and has no results.", err=True)
            raise typer.Exit(FAILED)
        return written

    written = _run(work, key, key_file, base_url, config)
    if as_json:
        typer.echo(json.dumps(written))
        return
    for one in written:
        typer.echo(f"{one['path']}  ({one['bytes']:,} bytes)")


@app.command()
def check(
    file: InputFile,
    endpoint: Annotated[
        str | None, typer.Option(help="(default: the url of the first line)")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only models that this team may use.")] = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Check a file without a server, with the code that the server checks it with.

    Models are checked if there is an inferd.toml. The exit code is 1 if anything is wrong.
    """
    models, line_bytes_max = _models(config, team)
    checked = _checked(file, endpoint or _first_url(file), models, line_bytes_max)
    if checked.errors:
        _tell_errors(file, checked, as_json=as_json)
        raise typer.Exit(FAILED)
    if as_json:
        typer.echo(json.dumps(_report(file, checked)))
    else:
        typer.echo(
            f"{file}: {checked.total:,} requests for {checked.model}, about"
            f" {checked.prompt_tokens:,} prompt tokens. Nothing is wrong."
        )


def _checked(
    file: Path, endpoint: str, models: dict[str, str] | None, line_bytes_max: int
) -> Checked:
    from inferd.batch.lines import ENDPOINTS, Rules, check_file

    if endpoint not in ENDPOINTS:
        raise typer.BadParameter(
            f"{endpoint!r} is none of: {', '.join(ENDPOINTS)}.", param_hint="--endpoint"
        )
    return check_file(file, Rules(endpoint, models, line_bytes_max))


def _first_url(file: Path) -> str:
    """The url of the first line that names one; what is wrong else is told by the check."""
    from inferd.batch.lines import ENDPOINTS

    with file.open("rb") as lines:
        for raw in lines:
            if not raw.strip():
                continue
            try:
                url = json.loads(raw.removeprefix(b"\xef\xbb\xbf"))["url"]
            except (ValueError, KeyError, TypeError):
                break
            return url if url in ENDPOINTS else ENDPOINTS[0]
    return ENDPOINTS[0]


def _models(config: Path, team: str | None) -> tuple[dict[str, str] | None, int]:
    """Every name that may stand in a line, and the longest line, by inferd.toml if there is one."""
    from inferd.config.load import load_config

    if not config.exists():
        if team is not None:
            raise typer.BadParameter(f"there is no {config}", param_hint="--team")
        return None, LINE_BYTES_MAX
    loaded = load_config(config).config
    from inferd.inference import Caller
    from inferd.routing.pools import Pools

    teams = [one for one in loaded.teams if one.name == team]
    if team is not None and not teams:
        raise typer.BadParameter(f"{config} has no team {team!r}", param_hint="--team")
    pools = Pools(loaded.models)
    if teams:
        return pools.names(Caller(teams[0].name, ""), teams[0]), loaded.server.body_bytes_max
    return pools.names(None, None), loaded.server.body_bytes_max


def _tell_errors(file: Path, checked: Checked, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_report(file, checked)))
        return
    from inferd.cli.batch_view import error_line

    for error in checked.errors:
        typer.echo(f"{file}: {error_line(error.as_json())}", err=True)
    if checked.errors_total > len(checked.errors):
        typer.echo(f"... and {checked.errors_total - len(checked.errors):,} more.", err=True)


def _report(file: Path, checked: Checked) -> dict[str, Any]:
    return {
        "file": str(file),
        "valid": not checked.errors,
        "total": checked.total,
        "model": checked.model,
        "prompt_tokens_estimated": checked.prompt_tokens,
        "errors": [error.as_json() for error in checked.errors],
        "errors_total": checked.errors_total,
    }


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not like key=value.", param_hint="--metadata")
    return name, value


def _following(
    call: Callable[[BatchClient], Awaitable[Batch]], *, wait: bool
) -> Callable[[BatchClient], Awaitable[Batch]]:
    """The call, and then with `wait` the batch's way to its end."""

    async def work(client: BatchClient) -> Batch:
        from inferd.cli.batch_display import followed

        batch = await call(client)
        return await followed(client, batch["id"]) if wait else batch

    return work


def _run(
    work: Callable[[BatchClient], Awaitable[Any]],
    key: str | None,
    key_file: Path | None,
    base_url: str | None,
    config: Path,
) -> Any:  # noqa: ANN401 - what the work gives
    import asyncio

    from inferd.cli.api_access import find_base_url, find_key
    from inferd.cli.batch_client import connected

    url = (base_url or find_base_url(config)).rstrip("/")
    secret = find_key(key, key_file, config)

    async def run() -> Any:  # noqa: ANN401
        async with connected(url, secret) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        typer.echo("\nThe batch goes on; `inferd batch show ID --wait` follows it.", err=True)
        sys.exit(130)


def _show(batch: Batch, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(batch))
        return
    from inferd.cli.batch_view import in_full

    typer.echo(in_full(batch))


def _show_submitted(batch: Batch, *, wait: bool, as_json: bool) -> None:
    if wait:
        _show(batch, as_json=as_json)
        if batch["status"] != "completed" or batch["request_counts"]["failed"]:
            raise typer.Exit(FAILED)
        return
    if as_json:
        typer.echo(json.dumps(batch))
    else:
        from inferd.cli.batch_view import after_submit

        typer.echo(after_submit(batch), err=True)
    if batch["status"] == "failed":
        raise typer.Exit(FAILED)
