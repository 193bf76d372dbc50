"""Loading inferd.toml. Goal: each mistake is told with its line, its path and what was meant.

Method: a right file, one line replaced; the problems are compared whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from inferd.config.load import FILE_BYTES_MAX, load_config
from inferd.errors import ConfigError

NOBODY = 65_534
RIGHT = """\
[server]
listen = "127.0.0.1:8080"

[logs]
level = "info"

[[models]]
name = "chat"
aliases = ["chat-small"]
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 1_024
targets = { ttft_ms = 800, tpot_ms = 40 }

[models.queue]
wait_s_max = 30

[[models.versions]]
version = "1"
weights = "weights/chat"

[models.versions.engine]
device = "cpu"
threads = 1
extra_args = ["--a", "--b"]
env = { A = "1" }

[models.versions.workers]
count = 2

[[models.versions]]
version = "2"
attached = [
    { url = "http://10.0.0.1:30000", key_env = "WORKER_KEY" },
    { url = "http://10.0.0.2:30000", inflight_max = 16 },
]

[[teams]]
name = "search"
models = ["chat"]
weight = 2
tokens_per_s = 1_000
burst_tokens = 100_000
"""
ENVIRON = {"WORKER_KEY": "secret-of-a-worker"}


def problems_of(tmp_path: Path, text: str | bytes) -> list[str]:
    """What loading `text` complains of, without the file's name."""
    file = tmp_path / "inferd.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refused:
        load_config(file, ENVIRON)
    assert all(line.startswith(f"{file}:") for line in refused.value.problems)
    assert refused.value.message == "\n".join(refused.value.problems)
    return [line.removeprefix(f"{file}:") for line in refused.value.problems]


def with_line(line: int, text: str) -> str:
    lines = RIGHT.splitlines()
    lines[line - 1] = text
    return "\n".join(lines) + "\n"


def test_a_right_file_is_loaded_whole(tmp_path: Path) -> None:
    file = tmp_path / "inferd.toml"
    file.write_text(RIGHT)
    loaded = load_config(file, ENVIRON)
    model = loaded.config.models[0]
    assert model.aliases == ("chat-small",)
    assert model.queue.wait_s_max == 30.0
    assert model.versions[0].engine.extra_args == ("--a", "--b")
    assert model.versions[0].workers.count == 2
    assert model.versions[1].attached[1].inflight_max == 16
    assert loaded.config.teams[0].weight == 2
    assert loaded.config.server.admin_listen == "127.0.0.1:8081"
    assert (loaded.path, loaded.root) == (file, tmp_path)


def test_paths_start_from_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inferd.toml").write_text(RIGHT)
    monkeypatch.chdir(tmp_path)
    loaded = load_config(Path("inferd.toml"), ENVIRON)
    assert loaded.root == tmp_path
    assert loaded.resolve("weights/chat") == tmp_path / "weights/chat"
    assert loaded.resolve("/models/chat") == Path("/models/chat")


def test_a_version_without_weights_has_no_workers_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "inferd.toml"
    file.write_text(RIGHT)
    assert load_config(file, ENVIRON).config.models[0].versions[1].workers.count == 0


def test_keys_of_workers_are_looked_up_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "inferd.toml"
    file.write_text(RIGHT)
    monkeypatch.delenv("WORKER_KEY", raising=False)
    with pytest.raises(ConfigError, match="environment variable WORKER_KEY is not set"):
        load_config(file)
    monkeypatch.setenv("WORKER_KEY", "secret")
    load_config(file)


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "inferd.toml"
    file.write_bytes(b"\xef\xbb\xbf" + RIGHT.replace("\n", "\r\n").encode())
    assert load_config(file, ENVIRON).config.models[0].name == "chat"


ONE_LINE = [
    # Unknown keys, and where the key that was meant is.
    (2, 'lisen = ":1"', '2: server: unknown key "lisen" (did you mean "listen"?)'),
    (1, "[sever]", '1: unknown key "sever" (did you mean "server"?)'),
    (4, "[nonsense]", '4: unknown key "nonsense" (there is "server", "engine", "files",'),
    (24, "thread = 1", '24: models[0].versions[0].engine: unknown key "thread" (did you mean "th'),
    (24, "count = 1", '24: models[0].versions[0].engine: unknown key "count" (it belongs to'),
    (19, "version = '1'\ndevice = 'cpu'", '(did you mean "engine.device"?)'),
    (41, "Weight = 2", '41: teams[0]: unknown key "Weight" (did you mean "weight"?)'),
    # Types.
    (2, "listen = 8080", "2: server.listen: must be a string, not the integer 8080"),
    (24, 'threads = "1"', "24: models[0].versions[0].engine.threads: must be an integer, not the"),
    (24, "threads = 1.5", "must be an integer, not the number 1.5"),
    (24, "threads = true", "must be an integer, not the boolean true"),
    (16, 'wait_s_max = "30"', "16: models[0].queue.wait_s_max: must be a number, not the string"),
    (16, "wait_s_max = 2026-01-01", "must be a number, not the date or time 2026-01-01"),
    (9, 'aliases = "small"', '9: models[0].aliases: must be an array, not the string "small"'),
    (9, "aliases = [1]", "9: models[0].aliases[0]: must be a string, not the integer 1"),
    (25, "extra_args = [1]", "25: models[0].versions[0].engine.extra_args[0]: must be a string"),
    (13, "targets = 800", "13: models[0].targets: must be a table, not the integer 800"),
    (13, "targets = []", "13: models[0].targets: must be a table, not an array"),
    (26, "env = { A = 1 }", "26: models[0].versions[0].engine.env.A: must be a string, not the in"),
    (26, "env = 1", "26: models[0].versions[0].engine.env: must be a table, not the integer"),
    (12, "output_tokens_max = true", "12: models[0].output_tokens_max: must be an integer, not t"),
    (12, "output_tokens_max = 1024\nreasoning = 1", "13: models[0].reasoning: must be true or fa"),
    # Ranges.
    (41, "weight = 0", "41: teams[0].weight: must be at least 1, not 0"),
    (41, "weight = 1_001", "41: teams[0].weight: must be at most 1,000, not 1,001"),
    (16, "wait_s_max = 0", "16: models[0].queue.wait_s_max: must be greater than 0, not 0"),
    (16, "wait_s_max = nan", "16: models[0].queue.wait_s_max: must be at most 86,400, not nan"),
    (16, "wait_s_max = inf", "16: models[0].queue.wait_s_max: must be at most 86,400, not inf"),
    (20, 'weights = ""', "20: models[0].versions[0].weights: must not be empty"),
    (20, f'weights = "{"x" * 4097}"', "20: models[0].versions[0].weights: may be at most 4,096 c"),
    # Choices.
    (5, 'level = "warn"', '5: logs.level: must be "debug" or "info" or "warning" or "error", not'),
    (5, 'level = "INFO"', '(did you mean "info"?)'),
    (23, 'device = "gpu"', 'not the string "gpu" (did you mean "cuda"?)'),
    (
        23,
        "device = 1",
        '23: models[0].versions[0].engine.device: must be "cuda" or "cpu", not the ',
    ),
    # Names and other patterns.
    (8, 'name = "chat:small"', "8: models[0].name: must start with a letter or digit"),
    (8, 'name = "chat@2"', "8: models[0].name: must start with a letter or digit"),
    (9, 'aliases = ["a@b"]', "9: models[0].aliases[0]: must start with a letter or digit"),
    (39, 'name = "a team"', "39: teams[0].name: must start with a letter or digit, then letters"),
    (20, 'weights = "w"\nchecksum = "abc"', "21: models[0].versions[0].checksum: must be sha256:"),
    (34, '{ url = "10.0.0.1" },', "34: models[0].versions[1].attached[0].url: must be http://h"),
    # What is missing.
    (8, "", '7: models[0]: missing key "name"'),
    (11, "", '7: models[0]: missing key "context_tokens_max"'),
    (35, "{ inflight_max = 16 },", '35: models[0].versions[1].attached[1]: missing key "url"'),
]


@pytest.mark.parametrize(("line", "text", "expected"), ONE_LINE)
def test_a_wrong_line_is_told(tmp_path: Path, line: int, text: str, expected: str) -> None:
    problems = problems_of(tmp_path, with_line(line, text))
    assert len(problems) == 1
    assert expected in problems[0]
    if expected[0].isdigit():
        assert problems[0].startswith(expected)


def test_the_example_of_the_design(tmp_path: Path) -> None:
    text = with_line(24, "tensor_paralel = 8")
    assert problems_of(tmp_path, text) == [
        (
            '24: models[0].versions[0].engine: unknown key "tensor_paralel"'
            ' (did you mean "tensor_parallel"?)'
        )
    ]


def test_a_key_below_the_sub_table_it_does_not_belong_to(tmp_path: Path) -> None:
    text = RIGHT + "\n" + '[logs.x]\nlevel = "info"\n'
    assert problems_of(tmp_path, text) == ['45: logs: unknown key "x" (there is "level")']
    moved = with_line(26, 'checksum = "sha256:x"')
    assert problems_of(tmp_path, moved) == [
        (
            '26: models[0].versions[0].engine: unknown key "checksum" (it belongs to'
            " models[0].versions[0]: its own keys stand above its sub-tables)"
        )
    ]


def test_one_table_where_an_array_of_tables_belongs(tmp_path: Path) -> None:
    text = RIGHT.replace("[[teams]]", "[teams]")
    assert problems_of(tmp_path, text) == [
        "38: teams: must be an array of tables: write [[teams]], not [teams]"
    ]
    text = 'models = [1, { name = "a" }]\n'
    assert problems_of(tmp_path, text) == [
        "1: models[0]: must be a table, not the integer 1",
        '1: models[1]: missing key "default_version"',
        '1: models[1]: missing key "context_tokens_max"',
        '1: models[1]: missing key "output_tokens_max"',
        "1: models[1]: needs at least one [[models.versions]]",
    ]


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "[server]\n"])
def test_a_file_without_models(tmp_path: Path, text: str) -> None:
    assert problems_of(tmp_path, text) == ["1: needs at least one [[models]]"]


def test_empty_arrays(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "models = []\n") == ["1: models: needs at least 1"]
    many = with_line(9, f"aliases = {[f'a{n}' for n in range(65)]}")
    assert problems_of(tmp_path, many) == ["9: models[0].aliases: may hold at most 64 entries"]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        RIGHT.replace('"127.0.0.1:8080"', '"127.0.0.1"')  # 2, a check between keys
        .replace('level = "info"', 'level = "infos"')  # 5, a choice
        .replace('default_version = "1"', 'default_version = "3"')  # 10, a name
        .replace("threads = 1", "thread = 1")  # 24, an unknown key
        .replace('models = ["chat"]', 'models = ["chatt"]')  # 40, a name
        .replace("weight = 2", "weight = 2.5")  # 41, a type
    )
    assert problems_of(tmp_path, text) == [
        "2: server.listen: must be address:port, for example 127.0.0.1:8080 or [::1]:8080",
        (
            '5: logs.level: must be "debug" or "info" or "warning" or "error", not the string'
            ' "infos" (did you mean "info"?)'
        ),
        '10: models[0].default_version: no version is called "3" (there is "1", "2")',
        '24: models[0].versions[0].engine: unknown key "thread" (did you mean "threads"?)',
        '40: teams[0].models[0]: no model or alias is called "chatt" (did you mean "chat"?)',
        "41: teams[0].weight: must be an integer, not the number 2.5",
    ]


def test_a_mistake_is_told_without_what_only_follows_from_it(tmp_path: Path) -> None:
    assert len(problems_of(tmp_path, with_line(20, 'weigths = "weights/chat"'))) == 1
    assert len(problems_of(tmp_path, with_line(43, "burst_token = 100_000"))) == 1
    assert len(problems_of(tmp_path, with_line(43, 'burst_tokens = "100k"'))) == 1
    assert len(problems_of(tmp_path, with_line(9, 'aliases = ["b:c"]'))) == 1


def test_a_check_is_made_although_a_required_key_of_another_section_is_wrong(
    tmp_path: Path,
) -> None:
    """Not so: without the key there is no configuration to check. Only the mistakes are told."""
    text = with_line(8, "name = 1").replace('models = ["chat"]', 'models = ["chatt"]')
    assert problems_of(tmp_path, text) == ["8: models[0].name: must be a string, not the integer 1"]


@pytest.mark.parametrize(
    ("line", "text", "where", "what"),
    [
        (2, 'listen = "127.0.0.1', 2, "at column"),
        (2, "listen 1", 2, "at column"),
        (5, "level = ", 5, "at column"),
        (5, 'level = "a"\nlevel = "b"', 6, "overwrite"),
        (41, "weight = 1__0", 41, "at column"),
        (13, "targets = { ttft_ms = 1", 13, "at column"),
        (18, "[server]", 18, "twice"),
        (43, "burst_tokens = [1,", 43, "at the end of the file"),
    ],
)
def test_what_is_not_toml_has_its_line(
    tmp_path: Path, line: int, text: str, where: int, what: str
) -> None:
    (problem,) = problems_of(tmp_path, with_line(line, text))
    assert problem.startswith(f"{where}: not valid TOML: ")
    assert what in problem


def test_numbers_and_nesting_beyond_reason_are_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, with_line(41, f"weight = {'9' * 5_000}"))
    assert "not valid TOML" in problem
    deep = "x = " + "[" * 20_000 + "]" * 20_000
    assert "nested too deeply" in problems_of(tmp_path, deep)[0]


def test_a_file_that_is_not_utf_8_has_the_line_of_its_first_wrong_byte(tmp_path: Path) -> None:
    wrong = RIGHT.encode().replace(b'"search"', b'"caf\xe9"')
    assert problems_of(tmp_path, wrong) == ["39: not UTF-8 (byte 0xe9); save it as UTF-8"]


def problem_without_line(file: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(file, {})
    (problem,) = refused.value.problems
    return problem


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    file = tmp_path / "inferd.toml"
    assert problem_without_line(file) == (
        f"{file}: no such file; `inferd init --config {file}` writes one"
    )


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    assert problem_without_line(tmp_path) == (
        f"{tmp_path}: is a folder; give the file, {tmp_path}/inferd.toml"
    )


@contextmanager
def without_root() -> Iterator[None]:
    """Root may read everything: become nobody for a while."""
    known = os.geteuid()
    if known == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(known)


def test_an_unreadable_file_for_a_user() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "inferd.toml"
        file.write_text(RIGHT)
        file.chmod(0)
        with without_root():
            problem = problem_without_line(file)
    assert "cannot be read (Permission denied)" in problem


def test_a_file_below_a_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problem = problem_without_line(tmp_path / "file" / "inferd.toml")
    assert "cannot be read (Not a directory)" in problem


def test_a_file_that_is_far_too_large_is_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "inferd.toml"
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    assert "larger than 4,194,304 bytes" in problem_without_line(file)


SECRET = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (34, f'{{ url = "http://10.0.0.1:1", key_env = "{SECRET}" }},'),
        (34, '{ url = "http://10.0.0.1:1", key_env = "a123456789abcdef" },'),
        (34, f'{{ url = "http://user:{SECRET}@10.0.0.1:1" }},'),
        (34, f'{{ url = "ftp://user:{SECRET}@10.0.0.1:1" }},'),
        (26, f'env = "{SECRET}"'),
        (25, f'extra_args = "--api-key {SECRET}"'),
    ],
)
def test_what_may_be_a_secret_is_not_repeated(tmp_path: Path, line: int, text: str) -> None:
    (problem,) = problems_of(tmp_path, with_line(line, text))
    assert "0123456789abcdef" not in problem
    assert "a123456789abcdef" not in problem
    assert problem.startswith(f"{line}: ")
