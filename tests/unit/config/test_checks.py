"""What must hold between keys. Goal: a name or a limit that matches nothing is told, with its line.

Method: a right file, then pieces replaced; the problems are compared whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.config.load import LoadedConfig, parse_config
from inferd.errors import ConfigError

RIGHT = """\
[server]
listen = "127.0.0.1:8080"
admin_listen = "127.0.0.1:8081"

[[models]]
name = "small"
aliases = ["fast"]
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 1_024

[[models.versions]]
version = "1"
weights = "small"

[[models]]
name = "large"
aliases = ["smart"]
default_version = "2026-11"
context_tokens_max = 32_768
output_tokens_max = 4_096

[[models.versions]]
version = "2026-11"
weights = "large"
attached = [{ url = "http://10.0.0.1:30000" }]

[[teams]]
name = "search"
models = ["small", "smart"]

[[teams]]
name = "mail"
"""


def load(text: str, environ: dict[str, str] | None = None) -> LoadedConfig:
    return parse_config(Path("inferd.toml"), text, environ or {})


def problems_of(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(text, environ)
    return [line.removeprefix("inferd.toml:") for line in refused.value.problems]


def replaced(*pairs: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_the_right_file_is_right() -> None:
    assert load(RIGHT).config.models[1].name == "large"


NAMES = [
    ('name = "large"', 'name = "small"', '17: models[1].name: "small" is already taken by model'),
    ('["smart"]', '["small"]', '18: models[1].aliases[0]: "small" is already taken by models[0].n'),
    ('["smart"]', '["fast"]', '18: models[1].aliases[0]: "fast" is already taken by models[0].ali'),
    ('["smart"]', '["large", "smart"]', '18: models[1].aliases[0]: "large" is already taken by mo'),
    ('["smart"]', '["smart", "smart"]', '18: models[1].aliases[1]: "smart" is already taken by mo'),
    ('name = "mail"', 'name = "search"', '33: teams[1].name: "search" is already taken by teams[0'),
    ('name = "mail"', 'name = "system"', '33: teams[1].name: "system" is the team of inferd\'s o'),
    ('["small", "smart"]', '["small", "smrat"]', "30: teams[0].models[1]: no model or alias is ca"),
    ('["small", "smart"]', '["small", "smrat"]', '(did you mean "smart"?)'),
    ('["small", "smart"]', '["small", "fast"]', '30: teams[0].models[1]: "fast" is already in th'),
    ('["small", "smart"]', "[]", "30: teams[0].models: the team could use no model: leave it out"),
    (
        'default_version = "2026-11"',
        'default_version = "2026-12"',
        '19: models[1].default_version: no version is called "2026-12" (did you mean "2026-11"?)',
    ),
    (
        'version = "1"\nweights = "small"',
        'version = "1"\nweights = "small"\n[[models.versions]]\nversion = "1"\nweights = "small"',
        '16: models[0].versions[1].version: "1" is already models[0].versions[0]',
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), NAMES)
def test_names_are_unique_and_name_something(old: str, new: str, expected: str) -> None:
    text = RIGHT.replace(old, new, 1) if old.startswith("version") else replaced((old, new))
    assert any(expected in problem for problem in problems_of(text))


LIMITS = [
    (
        "output_tokens_max = 1_024",
        "output_tokens_max = 4_097",
        "10: models[0].output_tokens_max: 4,097 is more than context_tokens_max, 4,096",
    ),
    (
        "output_tokens_max = 1_024",
        "output_tokens_max = 1_024\nqueue = { waiting_max = 8, waiting_per_team_max = 9 }",
        "11: models[0].queue.waiting_per_team_max: 9 is never reached: waiting_max is 8",
    ),
    (
        "output_tokens_max = 1_024",
        "output_tokens_max = 1_024\nqueue = { wait_s_max = 600 }",
        "11: models[0].queue.wait_s_max: 600 s is never reached: server.request_deadline_s is 590",
    ),
    (
        "[server]",
        "[server]\nrequest_deadline_s = 10\nbody_timeout_s = 10.5",
        "3: server.body_timeout_s: 10.5 s is never reached: server.request_deadline_s is 10 s",
    ),
    (
        'weights = "small"',
        'weights = "small"\nengine = { kv_tokens_max = 4_000 }',
        (
            "15: models[0].versions[0].engine.kv_tokens_max: 4,000 cannot hold one request of"
            " context_tokens_max, 4,096"
        ),
    ),
    (
        'weights = "small"',
        'weights = "small"\nengine = { device = "cpu", tensor_parallel = 2 }',
        (
            '15: models[0].versions[0].engine.tensor_parallel: counts GPUs: with device "cpu" it'
            " must be 1"
        ),
    ),
    (
        'weights = "small"',
        'weights = "small"\nworkers = { restart_backoff_s = 90 }',
        (
            "15: models[0].versions[0].workers.restart_backoff_s: 90 s is more than"
            " restart_backoff_s_max, 60 s"
        ),
    ),
    ('name = "mail"', 'name = "mail"\ntokens_per_s = 5', "34: teams[1].tokens_per_s: needs burst_"),
    ('name = "mail"', 'name = "mail"\nburst_tokens = 5000', "34: teams[1].burst_tokens: needs tok"),
    ('name = "mail"', 'name = "mail"\nrequests_per_s = 1', "34: teams[1].requests_per_s: needs bu"),
    ('name = "mail"', 'name = "mail"\nburst_requests = 1', "34: teams[1].burst_requests: needs re"),
    (
        "output_tokens_max = 1_024",
        "output_tokens_max = 1_024\ndefaults = { output_tokens = 2_000 }",
        "11: models[0].defaults.output_tokens: 2,000 is more than output_tokens_max, 1,024",
    ),
    (
        'name = "mail"',
        'name = "mail"\ntokens_per_s = 9\nburst_tokens = 1_024',
        (
            "35: teams[1].burst_tokens: 1,024 can never admit a request without max_tokens: it"
            " claims its prompt and 1,024 tokens of small"
        ),
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), LIMITS)
def test_limits_can_be_reached_and_can_admit_something(old: str, new: str, expected: str) -> None:
    (problem,) = problems_of(replaced((old, new)))
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    "new",
    [
        "output_tokens_max = 4_096",
        "output_tokens_max = 1_024\nqueue = { waiting_max = 8 }",  # 128 per team by default
        "output_tokens_max = 1_024\nqueue = { waiting_max = 8, waiting_per_team_max = 8 }",
        "output_tokens_max = 1_024\nqueue = { wait_s_max = 590 }",
    ],
)
def test_limits_that_only_just_make_sense_are_accepted(new: str) -> None:
    load(replaced(("output_tokens_max = 1_024", new)))


def test_a_short_deadline_needs_no_other_limit_to_be_written() -> None:
    load(replaced(("[server]", "[server]\nrequest_deadline_s = 5")))


def test_a_bucket_must_fit_one_model_of_the_team_not_all() -> None:
    limits = "tokens_per_s = 1\nburst_tokens = 1_025"
    load(replaced(('name = "mail"', f'name = "mail"\n{limits}')))
    (problem,) = problems_of(
        replaced(('models = ["small", "smart"]', f'models = ["smart"]\n{limits}'))
    )
    assert "and 4,096 tokens of large" in problem


VERSIONS = [
    (
        'weights = "small"',
        "",
        "12: models[0].versions[0]: no worker would ever serve it: it needs weights, or attached",
    ),
    (
        'weights = "small"',
        'weights = "small"\nworkers = { count = 0 }',
        (
            "12: models[0].versions[0]: no worker would ever serve it: it needs workers.count of 1"
            " or more, or attached"
        ),
    ),
    (
        'weights = "small"',
        "workers = { count = 1 }",
        (
            "14: models[0].versions[0].workers.count: 1 cannot be started without weights: name a"
            " model folder in weights"
        ),
    ),
    (
        'weights = "large"',
        f'checksum = "sha256:{"0" * 64}"',
        "25: models[1].versions[0].checksum: is of no weights: name a model folder in weights",
    ),
    ('weights = "small"', 'weights = "~/small"', '14: models[0].versions[0].weights: "~" means n'),
    ('weights = "small"', 'weights = "a\\u0000b"', "14: models[0].versions[0].weights: a path can"),
    ("[server]", '[server]\nstate_dir = "~"', '2: server.state_dir: "~" means nothing here: writ'),
    ("[server]", '[engine]\nenvironment = "~/e"\n[server]', '2: engine.environment: "~" means no'),
]


@pytest.mark.parametrize(("old", "new", "expected"), VERSIONS)
def test_every_version_can_be_served(old: str, new: str, expected: str) -> None:
    (problem,) = problems_of(replaced((old, new)))
    assert problem.startswith(expected)


def test_a_version_may_have_only_workers_of_others() -> None:
    version = load(replaced(('weights = "large"\n', ""))).config.models[1].versions[0]
    assert (version.weights, version.workers.count, len(version.attached)) == (None, 0, 1)


ADDRESSES = [
    "127.0.0.1",
    ":8080",
    "8080",
    "127.0.0.1:",
    "127.0.0.1:http",
    "127.0.0.1:65536",
    "127.0.0.1:-1",
    "127.0.0.1:+1",
    "127.0.0.256:80",
    "::1:8080",
    "[127.0.0.1]:80",
    "[::1]",
    "http://127.0.0.1:80",
    "a b:80",
    "-a:80",
    "a..b:80",
    "",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("key", ["listen", "admin_listen"])
def test_what_is_no_address_and_port(key: str, address: str) -> None:
    old = {"listen": '\nlisten = "127.0.0.1:8080"', "admin_listen": '"127.0.0.1:8081"'}[key]
    new = {"listen": f'\nlisten = "{address}"', "admin_listen": f'"{address}"'}[key]
    line = {"listen": 2, "admin_listen": 3}[key]
    (problem,) = problems_of(replaced((old, new)))
    assert problem.startswith(f"{line}: server.{key}: ")
    assert "must be address:port, for example 127.0.0.1:8080 or [::1]:8080" in problem


@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "localhost:0", "gpu-1.lan:1"])
def test_addresses_to_listen_on(address: str) -> None:
    load(replaced(('"127.0.0.1:8080"', f'"{address}"')))


@pytest.mark.parametrize("address", ["127.0.0.9:1", "[::1]:1", "localhost:1", "127.0.0.1:0"])
def test_administration_listens_on_loopback(address: str) -> None:
    load(replaced(('"127.0.0.1:8081"', f'"{address}"')))


@pytest.mark.parametrize("address", ["0.0.0.0:9", "[::]:9", "10.0.0.1:9", "gpu-1.lan:9"])
def test_administration_listens_nowhere_else(address: str) -> None:
    (problem,) = problems_of(replaced(('"127.0.0.1:8081"', f'"{address}"')))
    assert problem == (
        "3: server.admin_listen: must be a loopback address, for example 127.0.0.1:9"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:8081", "0.0.0.0:8081", "[::]:8081"])
def test_both_listeners_fit_on_the_machine(address: str) -> None:
    (problem,) = problems_of(replaced(('"127.0.0.1:8080"', f'"{address}"')))
    assert problem == f"3: server.admin_listen: must differ from server.listen, {address}"


def test_two_listeners_may_both_take_any_free_port() -> None:
    load(replaced(('"127.0.0.1:8080"', '"127.0.0.1:0"'), ('"127.0.0.1:8081"', '"127.0.0.1:0"')))


def test_one_of_the_default_addresses_can_be_the_other_ones() -> None:
    text = replaced(('admin_listen = "127.0.0.1:8081"\n', ""), (":8080", ":8081"))
    assert problems_of(text) == [
        "1: server.admin_listen: must differ from server.listen, 127.0.0.1:8081"
    ]


def attached(*entries: str) -> str:
    return replaced(('{ url = "http://10.0.0.1:30000" }', ", ".join(entries)))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:99999", "must be http://host:port with a port of 1 to 65,535"),
        ("http://h:0", "must be http://host:port"),
        ("http://:80", "must be http://host:port"),
        ("http://[::1:80", "must be http://host:port with a port of 1 to 65,535"),
        ("http://u:p@h:80", "must not hold a user or password: name the key's variable in key_env"),
        ("http://h:80/v1", "must not end in /v1: inferd adds it"),
        ("http://h:80/proxy/v1/", "must not end in /v1: inferd adds it"),
    ],
)
def test_urls_of_attached_workers(url: str, expected: str) -> None:
    (problem,) = problems_of(attached(f'{{ url = "{url}" }}'))
    assert problem == f"26: models[1].versions[0].attached[0].url: {expected}"


@pytest.mark.parametrize("url", ["http://h", "https://h:8443/", "http://[::1]:1", "http://h:1/a"])
def test_urls_that_are_right(url: str) -> None:
    load(attached(f'{{ url = "{url}" }}'))


def test_an_attached_worker_is_counted_once() -> None:
    twice = attached('{ url = "http://h:1" }', '{ url = "http://H:1/", inflight_max = 3 }')
    assert problems_of(twice) == [
        (
            "26: models[1].versions[0].attached[1].url: is already models[1].versions[0]"
            ".attached[0]; only another model may share it"
        )
    ]
    in_another_model = replaced(
        ('weights = "small"', 'attached = [{ url = "http://10.0.0.1:30000" }]')
    )
    assert problems_of(in_another_model) == [
        (
            "26: models[1].versions[0].attached[0].url: is already models[0].versions[0]"
            ".attached[0]; only another model may share it"
        )
    ]


def test_a_server_of_several_models_serves_each_under_its_own_name() -> None:
    text = replaced(
        ('weights = "small"', 'attached = [{ url = "http://10.0.0.1:30000", model = "s" }]'),
        ('[{ url = "http://10.0.0.1:30000" }]', '[{ url = "http://10.0.0.1:30000", model = "l" }]'),
    )
    assert load(text).config.models[0].versions[0].attached[0].model == "s"


@pytest.mark.parametrize("environ", [{}, {"WORKER_KEY": ""}])
def test_a_key_that_is_not_in_the_environment(environ: dict[str, str]) -> None:
    text = attached('{ url = "http://h:1", key_env = "WORKER_KEY" }')
    assert problems_of(text, environ) == [
        (
            "26: models[1].versions[0].attached[0].key_env:"
            " the environment variable WORKER_KEY is not set"
        )
    ]
    load(text, {"WORKER_KEY": "secret"})


def test_all_problems_are_told_together() -> None:
    text = replaced(
        ("127.0.0.1:8081", "10.0.0.1:8081"),
        ('default_version = "1"', 'default_version = "2"'),
        ("output_tokens_max = 4_096", "output_tokens_max = 40_960"),
        ('["small", "smart"]', '["smal", "smrt"]'),
        ('name = "mail"', 'name = "system"'),
    )
    assert [line.partition(":")[0] for line in problems_of(text)] == [
        "3",
        "8",
        "21",
        "30",
        "30",
        "33",
    ]
