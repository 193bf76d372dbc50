"""The fake's tokenizer: exact, reversible, and about as coarse as a real one.

Rule. Text is cut, left to right, into: up to 12 ASCII letters with one space before them if there
is one; a single digit; up to 3 ASCII punctuation characters, again with one leading space; a single
white-space character; any other character, which costs ceil(UTF-8 bytes / 2) tokens of which only
the last shows text. Cutting is stable under truncation at a token boundary, so an answer sent back
as history gives the same tokens again. The chat template adds 5 tokens a message (6 for assistant
and tool), 4 for the generation prompt, and 21 for the default system message when none is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

EOS = 2
DEFAULT_SYSTEM = "You are a stand in for a real model and answer with made up text."
_SPECIAL = {"<|im_start|>": 1, "<|im_end|>": EOS, "\n": 198}
_FIRST_ORDINARY_ID = 1_000
_ORDINARY_IDS = 48_000
_PIECE = re.compile(r" ?[A-Za-z]{1,12}|[0-9]| ?[!-/:-@\[-`{-~]{1,3}|\s|.", re.DOTALL)


class Token(NamedTuple):
    """One token: its id, and the text that becomes visible with it ("" inside a character)."""

    id: int
    text: str


def cut(text: str) -> list[str]:
    """The pieces of `text` by the module's rule; joined they give it back."""
    return _PIECE.findall(text)


@lru_cache(maxsize=65_536)
def _ids(piece: str) -> tuple[int, ...]:
    special = _SPECIAL.get(piece)
    if special is not None:
        return (special,)
    data = piece.encode("utf-8", "surrogatepass")
    count = 1 if piece.isascii() else -(-len(data) // 2)
    return tuple(
        _FIRST_ORDINARY_ID + crc32(data, position) % _ORDINARY_IDS for position in range(count)
    )


def encode(text: str) -> list[int]:
    """Token ids of plain text."""
    ids: list[int] = []
    for piece in cut(text):
        ids.extend(_ids(piece))
    return ids


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, each with what it shows when it is sent."""
    for piece in cut(text):
        *hidden, last = _ids(piece)
        for token in hidden:
            yield Token(token, "")
        yield Token(last, piece)


def shown(ids: Sequence[Token]) -> str:
    return "".join(token.text for token in ids)


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Iterable) and not isinstance(content, Mapping):
        parts = (part.get("text", "") for part in content if isinstance(part, Mapping))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def message_text(message: Mapping[str, object]) -> str:
    """The text a template would show of one chat message."""
    return _content_text(message.get("content"))


def chat_prompt(messages: Sequence[Mapping[str, object]]) -> list[int]:
    """Token ids of a chat after the template, generation prompt included."""
    newline, start, end = 198, 1, EOS
    ids: list[int] = []
    if not messages or messages[0].get("role") != "system":
        ids += [start, *_ids("system"), newline, *encode(DEFAULT_SYSTEM), end, newline]
    for message in messages:
        ids += [start, *_role(str(message.get("role", "user"))), newline]
        ids += encode(message_text(message))
        ids += [end, newline]
    return [*ids, start, *_role("assistant"), newline]


def _role(role: str) -> tuple[int, ...]:
    if role in {"assistant", "tool"}:
        return (*_ids(role[:3]), *_ids(role[3:]))
    return _ids(role)
