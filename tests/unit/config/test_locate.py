"""Lines of config paths. Goal: exact for everything TOML can write; never an exception.

The property builds a document line by line, noting where it put each key, and compares.
"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config.locate import KeyPath, Locations, show_path

DOCUMENT = '''\
# a comment with [brackets] and "quotes"
title = "x"  # another = comment

[server]
listen = "127.0.0.1:8080"
"odd key" = 1
limits.body.bytes = 3
note = """
[not.a.table]
key = "no key"
"""
hosts = [ # opens here
    "a",  # [x]
    'b]',

    """c
    d""", [1, [2,
      3]],
]
when = 1979-05-27 07:32:00
inline = { a = 1, "b c".d = [ { e = "}" }, { e = 2 } ], f = { } }

[[models]]
name = "one"

[[models.versions]]
version = "1"
[models.versions.engine]
device = "cpu"

[[models.versions]]
version = "2"

[[models]]
name = "two"
[[ models . "versions" ]]
engine = { device = "cpu", env = { A = \'\'\'q'\'\'\'\' } }
    indented = -0x_not
'''.replace("-0x_not", "1_000")

LINES: dict[KeyPath, int] = {
    (): 1,
    ("title",): 2,
    ("server",): 4,
    ("server", "listen"): 5,
    ("server", "odd key"): 6,
    ("server", "limits"): 7,
    ("server", "limits", "body"): 7,
    ("server", "limits", "body", "bytes"): 7,
    ("server", "note"): 8,
    ("server", "hosts"): 12,
    ("server", "hosts", 0): 13,
    ("server", "hosts", 1): 14,
    ("server", "hosts", 2): 16,
    ("server", "hosts", 3): 17,
    ("server", "hosts", 3, 1, 1): 18,
    ("server", "when"): 20,
    ("server", "inline", "b c", "d", 1, "e"): 21,
    ("server", "inline", "f"): 21,
    ("models",): 23,
    ("models", 0): 23,
    ("models", 0, "name"): 24,
    ("models", 0, "versions", 0): 26,
    ("models", 0, "versions", 0, "version"): 27,
    ("models", 0, "versions", 0, "engine"): 28,
    ("models", 0, "versions", 0, "engine", "device"): 29,
    ("models", 0, "versions", 1): 31,
    ("models", 0, "versions", 1, "version"): 32,
    ("models", 1): 34,
    ("models", 1, "name"): 35,
    ("models", 1, "versions"): 36,
    ("models", 1, "versions", 0): 36,
    ("models", 1, "versions", 0, "engine", "env", "A"): 37,
    ("models", 1, "versions", 0, "indented"): 38,
}


@pytest.mark.parametrize(("path", "line"), LINES.items())
def test_every_kind_of_entry_has_its_line(path: KeyPath, line: int) -> None:
    tomllib.loads(DOCUMENT)
    assert path in Locations(DOCUMENT)
    assert Locations(DOCUMENT).line(path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("models", 0, "versions", 1, "engine", "device"), 31),
        (("models", 0, "default_version"), 23),
        (("server", "nothing", 3), 4),
        (("nothing",), 1),
    ],
)
def test_what_is_not_there_has_the_line_of_what_should_hold_it(path: KeyPath, line: int) -> None:
    assert Locations(DOCUMENT).line(path) == line


def test_windows_line_ends_count_once() -> None:
    text = DOCUMENT.replace("\n", "\r\n")
    assert {path: Locations(text).line(path) for path in LINES} == LINES


def test_a_table_opened_after_its_sub_table_has_its_own_header() -> None:
    places = Locations("[a.b]\nx = 1\n[a]\ny = 2\n")
    assert [places.line(path) for path in ((("a"),), ("a", "b"), ("a", "y"), ("a", "z"))] == [
        3,
        1,
        4,
        3,
    ]


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", "a=1", "a=[]", "a={}", "[a]"])
def test_small_documents(text: str) -> None:
    tomllib.loads(text)
    assert Locations(text).line(("a", 0, "b")) == 1


def test_paths_read_like_the_example_in_the_docs() -> None:
    assert show_path(("models", 1, "versions", 0, "engine")) == "models[1].versions[0].engine"
    assert show_path(()) == ""


# A value: the text that writes it, and the lines of what is inside, counted from its own first.
Written = tuple[str, dict[KeyPath, int]]

KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=4),
)
FILLERS = st.sampled_from(["", "\n", "# comment ]}'\"\n", " \n\n", "\t# [[x]] = {\n"])
SCALARS = st.sampled_from(
    [
        "1",
        "-1_000",
        "0xBEEF",
        "1e9",
        "inf",
        "true",
        "1979-05-27T07:32:00Z",
        "1979-05-27 07:32:00.5",
        "07:32:00",
        '""',
        '"a # b"',
        '"\\"]}\\\\"',
        "'\\'",
        "'''\n\n[x]\ny = 1''''",
        '"""a\\"""\n""b"""""',
        '""""""',
        "''''''",
    ]
)


def quoted(key: str) -> str:
    plain = key and key.isascii() and all(c.isalnum() or c in "_-" for c in key)
    escaped = "".join(f"\\U{ord(c):08X}" if c in '"\\' else c for c in key)
    return key if plain else f'"{escaped}"'


def _moved(inner: dict[KeyPath, int], by: KeyPath, lines: int) -> dict[KeyPath, int]:
    return {(*by, *path): line + lines for path, line in inner.items()}


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[Written]) -> Written:
    text, found = "[", dict[KeyPath, int]()
    for index, (written, inner) in enumerate(draw(st.lists(values, max_size=3))):
        text += draw(FILLERS)
        found[index,] = text.count("\n")
        found |= _moved(inner, (index,), text.count("\n"))
        text += written + draw(FILLERS) + ","
    return text + draw(FILLERS) + "]", found


@st.composite
def inline_tables(draw: st.DrawFn, values: st.SearchStrategy[Written]) -> Written:
    parts, found = list[str](), dict[KeyPath, int]()
    lines = 0
    for key, (written, inner) in draw(st.dictionaries(KEYS, values, max_size=3)).items():
        found[key,] = lines
        found |= _moved(inner, (key,), lines)
        parts.append(f"{quoted(key)} = {written}")
        lines += written.count("\n")
    return "{ " + ", ".join(parts) + " }", found


VALUES: st.SearchStrategy[Written] = st.recursive(
    SCALARS.map(lambda text: (text, {})),
    lambda values: st.one_of(arrays(values), inline_tables(values)),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    """Tables and arrays of tables, with sub-tables, dotted keys and comments between."""
    text, found = "", dict[KeyPath, int]()

    def pairs(table: KeyPath) -> None:
        nonlocal text
        for key, (written, inner) in draw(st.dictionaries(KEYS, VALUES, max_size=3)).items():
            text += draw(FILLERS)
            line = text.count("\n") + 1
            dotted = draw(st.sampled_from([(key,), (key, "dotted"), (key, "a b", "c")]))
            for length in range(1, len(dotted) + 1):
                found[*table, *dotted[:length]] = line
            found.update(_moved(inner, (*table, *dotted), line))
            written_key = draw(st.sampled_from([".", " . "])).join(quoted(k) for k in dotted)
            text += f"{written_key} = {written}\n"

    pairs(())
    for number, is_array in enumerate(draw(st.lists(st.booleans(), max_size=3))):
        name = f"table {number}"
        for index in range(draw(st.integers(1, 3)) if is_array else 1):
            text += draw(FILLERS)
            here: KeyPath = (name, index) if is_array else (name,)
            found.setdefault((name,), text.count("\n") + 1)
            found[here] = text.count("\n") + 1
            text += f'[["{name}"]]\n' if is_array else f'[ "{name}" ]\n'
            pairs(here)
            if draw(st.booleans()):
                found[*here, "sub table"] = text.count("\n") + 1
                text += f'["{name}"."sub table"]\n'
                pairs((*here, "sub table"))
    return text, found


def paths_of(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    """Every path there is in a parsed document."""
    entries: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    return {path}.union(*(paths_of(inner, (*path, part)) for part, inner in entries))


@given(documents())
def test_every_entry_of_any_document_is_found_where_it_was_written(
    document: tuple[str, dict[KeyPath, int]],
) -> None:
    text, expected = document
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # keys that collide, for example `a.dotted` beside `a`
    places = Locations(text)
    assert {path: places.line(path) for path in expected} == expected
    assert all(path in places for path in paths_of(data))
