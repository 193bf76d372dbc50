"""A tool call as a token sequence: the model's own wrapping costs tokens but shows nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.fake_engine.answers import Direction, Script, prose
from tests.fake_engine.tokens import Token, tokens


def call_script(name: str, arguments: str, seed: int) -> Script:
    """The tokens of one call; only the arguments are visible."""
    before = [*tokens(f'<tool_call>\n{{"name": "{name}", "arguments": ')]
    after = [*tokens("}\n</tool_call>")]
    shown = [*tokens(arguments)]
    planned = [
        *(Token(one.id, "") for one in before),
        *shown,
        *(Token(one.id, "") for one in after),
    ]

    def stream() -> Iterator[Token]:
        yield from planned
        filler = prose(random.Random(seed).getrandbits(32), Direction())
        for one in filler.tokens:
            yield Token(one.id, "")

    return Script(stream(), len(planned))
