"""What a person is told when the first worker is ready: something to paste, and what to try next.

Lines that are to be pasted stand alone and begin at the left margin.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from inferd.errors import StartError

KEY_BYTES_MAX = 4_096
PROMPT = "Say hello in one sentence."


def read_key_file(path: Path) -> str:
    """The secret in a file of `inferd keys ensure`. Raises StartError with the next step."""
    make = f"`inferd keys ensure --team TEAM --file {path}` makes one."
    try:
        with path.open("rb") as file:
            secret = file.read(KEY_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        raise StartError(f"{path}: there is no such file; {make}") from None
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}; {make}") from error
    return checked_key(secret, str(path))


def checked_key(text: str, where: str) -> str:
    """The key without space around it. Raises StartError if it cannot be one."""
    key = text.strip()
    if not (key.isascii() and key.isprintable() and len(key.split()) == 1):
        raise StartError(f"{where} holds no API key; `inferd keys create --team TEAM` makes one.")
    return key


def command_name() -> str:
    """How this very command is called from another shell."""
    program = Path(sys.argv[0]).absolute()
    own = program.parent == Path(sys.prefix, "bin") and sys.prefix != sys.base_prefix
    if not own or os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return "inferd"
    # In an environment that the other shell has not activated.
    return str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def hello(*, base_url: str, team: str, models: list[str], secret: str, command: str) -> str:
    """The block of lines. `models`: their names, the one that is ready first."""
    message = {"role": "user", "content": PROMPT}
    body = json.dumps({"model": models[0], "stream": True, "messages": [message]})
    return f"""\
In a shell:

curl -N {base_url}/chat/completions \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{body}'

In Python, after `pip install openai`:

from openai import OpenAI

client = OpenAI(base_url="{base_url}", api_key="{secret}")
stream = client.chat.completions.create(
    model="{models[0]}",
    messages=[{json.dumps(message)}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)

Base URL: {base_url}
API key:  {secret} (team {team})
Models:   {", ".join(models)}

{next_steps(command)}"""


def next_steps(command: str) -> str:
    """What to try from another shell while inferd serves."""
    return f"""\
Next, in another shell:
  {command} chat              talk to the model
  {command} status --watch    workers, queue and teams, live
  {command} --help            everything else"""
