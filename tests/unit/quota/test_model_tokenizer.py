"""Prompts counted by a model's own tokenizer; what cannot be counted right is refused by name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from inferd.quota.model_tokenizer import ModelTokenizer, UnsupportedTokenizerError, plain_chat
from tests.fakes.tokenizer_folder import make


def test_merges_special_tokens_and_the_template_are_counted(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.of_folder(make(tmp_path))
    assert tokenizer.count_text("") == 0
    assert tokenizer.count_text("hello") == 3, "he ll o"
    assert tokenizer.count_text("hello hello") == 6, "he ll o, Ġhe ll o"
    assert tokenizer.count_text("é") == 2, "two bytes"
    assert tokenizer.count_text("a<|end|>a") == 3
    chat = [{"role": "user", "content": "hello"}]
    role_and_line = len("user\n")
    assert tokenizer.count_chat(chat) == 1 + role_and_line + 3 + 1 + 1


def test_a_template_that_refuses_the_messages_counts_nothing(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.of_folder(make(tmp_path))
    wrong = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    assert tokenizer.count_chat(wrong) is None


def test_a_pattern_of_the_tokenizers_own_and_nfc(tmp_path: Path) -> None:
    own = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\p{L}|\s"}, "behavior": "Isolated"},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ],
    }
    single = ModelTokenizer.of_folder(make(tmp_path, pre_tokenizer=own))
    assert single.count_text("hell") == 4, "nothing is merged across single letters"
    composed = ModelTokenizer.of_folder(make(tmp_path, normalizer={"type": "NFC"}))
    assert composed.count_text("e\u0301") == 2, "one letter of two bytes"


def test_bytes_that_the_vocabulary_lacks_are_dropped_as_the_engine_drops_them(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path)
    text = (folder / "tokenizer.json").read_text().replace('"z":', '"zz":')
    (folder / "tokenizer.json").write_text(text)
    assert ModelTokenizer.of_folder(folder).count_text("azb") == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"type": "Unigram"}}, "not byte-level BPE"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizes texts by 'Lowercase'"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "not by one pattern"),
        ({"added_tokens": []}, "no special tokens"),
        ({"added_tokens": [{"content": "<|x|>", "lstrip": True}]}, "takes spaces"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=why):
        ModelTokenizer.of_folder(make(tmp_path, **changes))


def test_a_folder_without_a_tokenizer_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"tokenizer\.json cannot be read"):
        ModelTokenizer.of_folder(tmp_path)


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    assert ModelTokenizer.of_folder(folder).count_chat([{"role": "user", "content": "a"}]) is None


def test_what_was_counted_once_is_remembered(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.of_folder(make(tmp_path))
    long = "hello there " * 40_000
    began = time.thread_time()
    first = tokenizer.count_text(long)
    took_s = time.thread_time() - began
    began = time.thread_time()
    assert tokenizer.count_text(long + "<|end|>hello") == first + 4
    assert time.thread_time() - began < took_s / 2


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": []},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"prompt": "a"},
    ],
)
def test_only_plain_chats_are_counted(body: dict[str, Any]) -> None:
    assert plain_chat(body) is None
