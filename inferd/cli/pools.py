"""`inferd pools`: what each version of each model is and how it stands on the running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from rich.table import Table


def register(parent: typer.Typer) -> None:
    """Add `pools` to the command line."""
    parent.command()(pools)


def pools(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Show every pool: workers, queue, requests taken, LoRA adapters."""
    import asyncio

    from inferd.cli.server_place import find_server

    place = find_server(config)

    async def ask() -> dict[str, Any]:
        async with place.admin() as admin:
            return await admin.call("GET", "pools")

    found = asyncio.run(ask())["data"]
    if as_json:
        typer.echo(json.dumps(found))
        return
    from inferd.cli.tables import show

    show(pool_table(found))


def pool_table(found: list[dict[str, Any]]) -> Table:
    """A row a pool, its default version marked, and one for each adapter below it."""
    from inferd.cli.tables import new_table

    made = new_table("pool", "kind", "state", "workers", "in flight", "waiting", "context", "takes")
    for pool in found:
        waiting = sum(pool["waiting"].values())
        name = f"{pool['pool']} *" if pool["default"] else pool["pool"]
        made.add_row(
            name,
            pool["kind"],
            pool["state"],
            _workers(pool),
            str(pool["inflight"]),
            str(waiting),
            f"{pool['context_tokens_max']:,}",
            _takes(pool),
        )
        for adapter in pool["adapters"]:
            made.add_row(f"  {adapter['name']}", "adapter", *_adapter(adapter), "", "", "", "")
    return made


def _workers(pool: dict[str, Any]) -> str:
    if pool["sides"] is None:
        return f"{pool['workers_ready']}/{pool['workers_wanted']}"
    return ", ".join(
        f"{side} {count['ready']}/{count['wanted']}" for side, count in pool["sides"].items()
    )


def _takes(pool: dict[str, Any]) -> str:
    takes = pool["takes"]
    if takes is None:
        return "the rest" if pool["default"] else "pinned"
    told = []
    if takes["prompt_tokens_min"] is not None:
        told.append(f"prompts from {takes['prompt_tokens_min']:,} tokens")
    if takes["teams"]:
        told.append(f"teams {', '.join(takes['teams'])}")
    if takes["inflight_below"] is not None:
        told.append(f"below {takes['inflight_below']} in flight")
    return "; ".join(told)


def _adapter(adapter: dict[str, Any]) -> tuple[str, str]:
    """Its state where it is worst, and on how many workers it is loaded."""
    states = adapter["workers"]
    loaded = sum(state == "loaded" for state in states.values())
    problems = [state for state in states.values() if state not in {"loaded", "not loaded"}]
    state = problems[0] if problems else "loaded" if loaded else "not loaded"
    return state, f"{loaded}/{len(states)}"
