"""`inferd chat`: ask a model once, or talk with it.

The key comes from --key, --key-file, INFERD_API_KEY or the first key's file, in this order.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferd.cli.api_access import FIRST_KEY, KEY_VARIABLE, find_base_url, find_key
from inferd.cli.config import CONFIG, ConfigPath
from inferd.cli.failure import tell

if TYPE_CHECKING:
    from inferd.cli.conversation import Conversation

COMMANDS = """\
/reset  forget what was said and begin anew
/exit   leave; so does Ctrl-D
/help   this
Ctrl-C stops an answer; what came of it stays in the conversation."""


def register(parent: typer.Typer) -> None:
    """Add `chat` to the command line."""
    parent.command()(chat)


def chat(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Ask this and leave. Without it: talk, or read it from a pipe."),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="(default: the first that is ready)")
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told beforehand.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of an answer. (default: the model's limit)")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="(default: the model's)")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help=f"API key, which others can see in `ps`. (environment: {KEY_VARIABLE})"),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help=f"File that holds the key. (default: {FIRST_KEY})")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="(default: http://ADDRESS/v1, by inferd.toml)")
    ] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Ask a model once, or talk with it; answers come as they are made.

    With a prompt, or with one from a pipe, the answer alone goes to standard output.
    """
    from inferd.cli.conversation import Conversation, Options

    options = Options(
        base_url=(base_url or find_base_url(config)).rstrip("/"),
        key=find_key(key, key_file, config),
        model=model,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
    )
    if prompt:
        Conversation(options).ask(" ".join(prompt))
    elif not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise typer.BadParameter("standard input is empty", param_hint="PROMPT")
        Conversation(options).ask(text)
    else:
        _talk(Conversation(options))


def _talk(conversation: Conversation) -> None:
    # Gives `input` a line that can be edited, and a history.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    typer.echo("Talk to the model; /help tells what else there is, Ctrl-D leaves.", err=True)
    while True:
        try:
            text = input("> ").strip()
        except KeyboardInterrupt:
            typer.echo("\nCtrl-D leaves.", err=True)
            continue
        except EOFError:
            typer.echo(err=True)
            return
        if text == "/exit":
            return
        if text:
            _turn(conversation, text)


def _turn(conversation: Conversation, text: str) -> None:
    if text == "/reset":
        conversation.reset()
        typer.echo("Forgotten.", err=True)
    elif text.startswith("/"):
        unknown = "" if text == "/help" else f"There is no {text.split(maxsplit=1)[0]}.\n"
        typer.echo(f"{unknown}{COMMANDS}", err=True)
    else:
        from inferd.cli.chat_client import ApiError

        try:
            conversation.ask(text)
        except KeyboardInterrupt:
            conversation.tell("stopped")
        except ApiError as error:
            tell(error)
