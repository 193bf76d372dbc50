"""What the fake says: deterministic text, seeded by the whole prompt (and `seed`, and the choice).

The last user message may direct it: `[tokens N]` says how many tokens come before the end token,
`[say TEXT]` gives the answer, `[emoji]` and `[thai]` (or the plain words) ask for multi-byte text,
`[tool NAME]` makes a model with `tool_choice: auto` call that tool.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tests.fake_engine.tokens import Token, tokens

_TOKENS = re.compile(r"\[tokens (\d+)\]")
_SAY = re.compile(r"\[say (.*)\]", re.DOTALL)
_TOOL = re.compile(r"\[tool ([\w.-]+)\]")
_SHORTEST, _LONGEST = 24, 160
_VOCABULARY = (
    "river stone light over the a quiet city where people walk and speak of old maps while wind "
    "moves through open windows every morning brings another question about water trade music "
    "science green hills small engines counting slowly toward winter nobody knows which answer "
    "comes first but each one is clear enough to write down again with care"
)
_WORDS = _VOCABULARY.split()
_EMOJI = ("😀", "🚀", "🌍", "👍", "🎉", "❤", "🐘", "🍜")
_THAI = ("สวัสดี", "ภาษา", "ไทย", "น้ำ", "เมือง", "เพลง", "ขอบคุณ", "คำถาม")


@dataclass(frozen=True, slots=True)
class Direction:
    """What a prompt asks of the fake itself."""

    length: int | None = None
    say: str | None = None
    tool: str | None = None
    alphabet: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Direction:
        """Find the directions in a prompt's last user text."""
        length, say, tool = _TOKENS.search(text), _SAY.search(text), _TOOL.search(text)
        lowered = text.lower()
        alphabet: tuple[str, ...] = ()
        if "emoji" in lowered:
            alphabet += _EMOJI
        if "thai" in lowered:
            alphabet += _THAI
        return cls(
            length=int(length[1]) if length else None,
            say=say[1] if say else None,
            tool=tool[1] if tool else None,
            alphabet=alphabet,
        )


def _sentences(rng: random.Random, alphabet: Sequence[str]) -> Iterator[str]:
    space = ""
    while True:
        count = rng.randint(5, 14)
        for position in range(count):
            pick = rng.choice(alphabet) if alphabet and position % 2 else rng.choice(_WORDS)
            yield space + (pick.capitalize() if position == 0 else pick)
            space = " "
        yield "."


def _prose(rng: random.Random, alphabet: Sequence[str]) -> Iterator[Token]:
    for piece in _sentences(rng, alphabet):
        yield from tokens(piece)


@dataclass(slots=True)
class Script:
    """A planned answer: tokens without end, and after how many the model would stop by itself."""

    tokens: Iterator[Token]
    natural_end: int


def prose(seed: int, direction: Direction) -> Script:
    """Free text. `seed` covers prompt, choice and the request's own seed."""
    rng = random.Random(seed)
    if direction.say is not None:
        return fixed(direction.say, seed)
    length = direction.length
    if length is None:
        length = rng.randint(_SHORTEST, _LONGEST)
    return Script(_prose(rng, direction.alphabet), length)


def fixed(text: str, seed: int) -> Script:
    """Exactly this text, then the end token; prose follows if the end token is ignored."""
    planned = list(tokens(text))

    def stream() -> Iterator[Token]:
        yield from planned
        yield from _prose(random.Random(seed), ())

    return Script(stream(), len(planned))


def take(script: Script, count: int) -> list[Token]:
    return list(islice(script.tokens, count))
