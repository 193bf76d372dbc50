"""`inferd top`: pools, workers, teams and speeds of the running server, live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.errors import InferdError

if TYPE_CHECKING:
    from inferd.cli.rates import Look
    from inferd.cli.server_place import ServerPlace

INTERVAL_S_MIN: Final = 0.2
WINDOW_LOOKS: Final = 10
"""Speeds are over as many looks."""
QUIT: Final = frozenset("q\x03\x04\x1b")
PAUSE: Final = " "

Answer = dict[str, Any]


def register(parent: typer.Typer) -> None:
    """Add `top` to the command line."""
    parent.command()(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    as_json: AsJson = False,
    interval: Annotated[
        float, typer.Option(min=INTERVAL_S_MIN, help="Seconds between two looks.")
    ] = 1.0,
    config: ConfigPath = CONFIG,
) -> None:
    """Show the running server's pools, speeds and teams, live.

    q quits, space pauses. With --json a line a look; with --once one look (over one interval).
    """
    from inferd.cli.server_place import find_server

    place = find_server(config)
    asyncio.run(_run(place, interval, once=once, as_json=as_json))


async def _run(place: ServerPlace, interval_s: float, *, once: bool, as_json: bool) -> None:
    from inferd.cli.tables import plain_console, show
    from inferd.cli.top_view import top_view

    looks: list[Look] = [(await _look(place))[1]]
    console = plain_console()
    if once or as_json or not console.is_terminal or console.is_dumb_terminal:
        while True:
            await asyncio.sleep(interval_s)
            answer = await _next(place, looks)
            typer.echo(json.dumps(answer)) if as_json else show(top_view(answer))
            if once:
                return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, screen=True, auto_refresh=False) as live, _keys() as pressed:
        while not pressed.quit:
            try:
                if not pressed.paused:
                    live.update(top_view(await _next(place, looks)), refresh=True)
            except InferdError as error:  # it may come back
                live.update(Text(error.message), refresh=True)
            await pressed.wait(interval_s)


async def _next(place: ServerPlace, looks: list[Look]) -> Answer:
    from inferd.cli.top_view import speeds

    status, look = await _look(place)
    before = looks[0]
    looks.append(look)
    del looks[:-WINDOW_LOOKS]
    return {"object": "top", "status": status, **speeds(look, before)}


async def _look(place: ServerPlace) -> tuple[Answer, Look]:
    """Status and metrics of the running server. Raises InferdError if there is none."""
    from inferd.cli.rates import read_look

    async with place.admin() as admin:
        status = await admin.call("GET", "status")
        text = await admin.metrics()
    return status, read_look(text, asyncio.get_running_loop().time())


class _Pressed:
    """What was pressed: to quit, to pause."""

    def __init__(self) -> None:
        self.quit = False
        self.paused = False
        self._woken = asyncio.Event()

    def read(self) -> None:
        for key in os.read(sys.stdin.fileno(), 64).decode("latin-1"):
            self.quit = self.quit or key in QUIT
            self.paused ^= key == PAUSE
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()


@contextlib.contextmanager
def _keys() -> Iterator[_Pressed]:
    """Single keys without Enter; the terminal is as it was after that."""
    pressed = _Pressed()
    loop = asyncio.get_running_loop()
    undo: list[Callable[[], object]] = []
    if sys.stdin.isatty():
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor)
        undo.append(lambda: termios.tcsetattr(descriptor, termios.TCSADRAIN, before))
        loop.add_reader(descriptor, pressed.read)
        undo.append(lambda: loop.remove_reader(descriptor))
    try:
        yield pressed
    finally:
        for step in reversed(undo):
            step()
