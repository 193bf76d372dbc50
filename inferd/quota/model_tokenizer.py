"""How many tokens a prompt is, by the model's own tokenizer: byte-level BPE and its chat template.

Made of a model folder's files. Only what is certain to be counted right is taken: one split
pattern, no normalizer but NFC, plain added tokens; anything else is refused by name. A prompt is
cut at its special tokens and each piece is counted once and remembered, so shared system prompts
and histories cost nothing. Safe to be used from threads: nothing is changed but a dict of counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from xxhash import xxh3_128_digest

if TYPE_CHECKING:
    from jinja2 import Template
    from tiktoken import Encoding

REMEMBERED_MAX: Final = 65_536
"""Pieces whose counts are kept; then all are forgotten, which costs one count each."""
GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a byte-level pre-tokenizer splits by that names no pattern of its own."""
_TEMPLATE_CHARS_MAX: Final = 1_048_576
_PLAIN_MESSAGE: Final = {"role", "content"}
_ROLES: Final = {"system", "user", "assistant"}


class UnsupportedTokenizerError(Exception):
    """The folder's tokenizer is of a kind that is not counted here, or is not there at all."""


class ModelTokenizer:
    """Counts prompts of one model. Make it with `of_folder`, off the loop: that takes a second."""

    def __init__(
        self,
        encoding: Encoding,
        template: Template,
        special: Sequence[str],
        variables: Mapping[str, object],
        *,
        nfc: bool,
        missing: frozenset[int] = frozenset(),
    ) -> None:
        """`missing`: bytes that the vocabulary lacks, which the engine drops."""
        self._encoding = encoding
        self._missing = missing
        self._template = template
        self._special = frozenset(special)
        longest_first = sorted(special, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._variables = variables
        self._nfc = nfc
        self._counts: dict[bytes, int] = {}

    @classmethod
    def of_folder(cls, folder: Path) -> ModelTokenizer:
        """Raises UnsupportedTokenizerError, saying what it is that cannot be counted."""
        described = _read(folder / "tokenizer.json")
        settings = _read(folder / "tokenizer_config.json")
        added = described.get("added_tokens") or []
        for token in added:
            if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
                raise UnsupportedTokenizerError(f"its token {token.get('content')!r} takes spaces")
        special = [str(token["content"]) for token in added if token.get("content")]
        if not special:
            raise UnsupportedTokenizerError("it has no special tokens to tell messages apart")
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        variables = {name: _content(settings.get(name)) for name in names}
        encoding, missing = _encoding(described)
        nfc = _is_nfc(described.get("normalizer"))
        template = _template(folder, settings)
        return cls(encoding, template, special, variables, nfc=nfc, missing=missing)

    def count_chat(self, messages: Sequence[Mapping[str, str]]) -> int | None:
        """Tokens of the prompt that the engine makes of these messages.

        None: the template wants something else, or refuses them.
        """
        from jinja2 import TemplateError  # noqa: PLC0415 - see `_template`

        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=True, **self._variables
            )
        except (TemplateError, TypeError, ValueError):
            return None
        return self.count_text(text)

    def count_text(self, text: str) -> int:
        """Tokens of a text as it stands, special tokens in it included."""
        total = 0
        for at, piece in enumerate(self._cut.split(text)):
            total += 1 if at % 2 else self._count(piece)
        return total

    def _count(self, piece: str) -> int:
        if not piece:
            return 0
        name = xxh3_128_digest(piece.encode("utf-8", "surrogatepass"))
        known = self._counts.get(name)
        if known is None:
            plain = unicodedata.normalize("NFC", piece) if self._nfc else piece
            tokens = self._encoding.encode_ordinary(plain)
            known = len(tokens)
            if self._missing:
                known -= sum(token in self._missing for token in tokens)
            if len(self._counts) >= REMEMBERED_MAX:
                self._counts.clear()
            self._counts[name] = known
        return known


def plain_chat(body: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """The messages of a request, if the template sees nothing but their roles and texts."""
    if any(name in body for name in ("tools", "reasoning_effort", "chat_template_kwargs")):
        return None
    if "continue_final_message" in body or not (messages := body.get("messages")):
        return None
    for message in messages:
        if not message.keys() <= _PLAIN_MESSAGE or not isinstance(message.get("content"), str):
            return None
        if message["role"] not in _ROLES:
            return None
    return None if messages[-1]["role"] == "assistant" else messages


def _encoding(described: Mapping[str, Any]) -> tuple[Encoding, frozenset[int]]:
    """Ranks in the order of the merges: who is merged first is what decides a count.

    And the bytes that the vocabulary lacks; a rank below 256 is its byte.
    """
    from tiktoken import Encoding  # noqa: PLC0415 - a start without such a model does without it

    model = described.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise UnsupportedTokenizerError(f"it is of type {model.get('type')!r}, not byte-level BPE")
    pattern = _pattern(described.get("pre_tokenizer"))
    byte_of = _bytes_of_chars()
    ranks = {bytes([byte]): byte for byte in range(256)}
    try:
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            merged = bytes(byte_of[char] for char in left + right)
            ranks.setdefault(merged, len(ranks))
    except (KeyError, ValueError, TypeError) as error:
        raise UnsupportedTokenizerError(f"its merges are not of bytes: {error}") from error
    vocabulary = model.get("vocab") or {}
    missing = frozenset(byte for char, byte in byte_of.items() if char not in vocabulary)
    try:
        made = Encoding("model", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    except ValueError as error:
        raise UnsupportedTokenizerError(f"its pattern cannot be used: {error}") from error
    return made, missing


def _pattern(pre: Mapping[str, Any] | None) -> str:
    """The one regular expression that texts are split by before they are merged."""
    steps = [pre or {}]
    if steps[0].get("type") == "Sequence":
        steps = list(steps[0].get("pretokenizers") or [])
    kinds = [step.get("type") for step in steps]
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise UnsupportedTokenizerError(f"it splits texts by {kinds}, not by one pattern")
    if len(steps) == 1 and last.get("use_regex", True):
        return GPT2_PATTERN
    if kinds == ["Split", "ByteLevel"] and not last.get("use_regex", True):
        split = steps[0]
        pattern = (split.get("pattern") or {}).get("Regex")
        if pattern and split.get("behavior") == "Isolated" and not split.get("invert"):
            return str(pattern)
    raise UnsupportedTokenizerError(f"it splits texts by {kinds}, not by one pattern")


def _is_nfc(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer.get("type") != "NFC":
        raise UnsupportedTokenizerError(f"it normalizes texts by {normalizer.get('type')!r}")
    return True


def _template(folder: Path, settings: Mapping[str, Any]) -> Template:
    """The chat template, in a sandbox: it is a program out of a model folder."""
    from jinja2 import TemplateError  # noqa: PLC0415 - a start without such a model does without it
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    beside = folder / "chat_template.jinja"
    text = settings.get("chat_template")
    if beside.is_file():
        text = beside.read_text(encoding="utf-8")
    if not isinstance(text, str) or len(text) > _TEMPLATE_CHARS_MAX:
        raise UnsupportedTokenizerError("it has no single chat template")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: orjson.dumps(value).decode()
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise UnsupportedTokenizerError(f"its chat template cannot be read: {error}") from error


def _refuse(message: object) -> None:
    raise ValueError(str(message))


def _content(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedTokenizerError(f"{path.name} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise UnsupportedTokenizerError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedTokenizerError(f"{path.name} is not an object")
    return value


def _bytes_of_chars() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}
