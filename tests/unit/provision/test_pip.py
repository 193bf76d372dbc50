"""How pip is called and what it says. Goal: a failure names its cause and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.provision import pip

RETRYING = (
    "WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError("
    "'<HTTPSConnection>: Failed to establish a new connection: [Errno -2] Name or service not "
    "known')': /simple/torch/\n"
)
NOTHING = (
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: "
    "none)\nERROR: No matching distribution found for torch==2.13.0\n"
)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (RETRYING + NOTHING, ["cannot reach a package index", "PIP_INDEX_URL"]),
        (NOTHING, ["no index that pip uses offers torch==2.13.0", "PIP_EXTRA_INDEX_URL"]),
        ("OSError: [Errno 28] No space left on device\n" + NOTHING, ["the disk is full"]),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]" + RETRYING, ["certificate", "PIP_CERT"]),
        ("ProxyError('Cannot connect to proxy')" + NOTHING, ["proxy", "HTTPS_PROXY"]),
        ("ERROR: HTTP error 401 Client Error: Unauthorized for url", ["credentials"]),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", ["altered", "pip cache purge"]),
        ("PermissionError: [Errno 13] Permission denied: '/x'", ["--directory"]),
    ],
)
def test_causes(output: str, words: list[str]) -> None:
    cause = pip.cause(output)
    assert cause is not None
    assert all(word in cause for word in words)
    what, _, advice = cause.partition(". ")
    assert what
    assert advice


def test_an_unknown_failure_has_no_cause() -> None:
    assert pip.cause("Segmentation fault") is None


@pytest.mark.parametrize(
    ("line", "activity"),
    [
        ("Collecting torch==2.13.0 (from -r x)", "torch"),
        ("Collecting partial-json-parser==0.2.1.1.post7", "partial-json-parser"),
        ("Processing /wheels/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "torch"),
        ("  Downloading triton-3.9.0-cp311-cp311-x.whl (285.8 MB)", "triton (285.8 MB)"),
        ("Using cached apache_tvm_ffi-0.1.11-py3-none-any.whl (2 MB)", "apache-tvm-ffi (2 MB)"),
        ("Progress 71000000 of 285800000", "71 of 286 MB"),
        ("Progress 5 of 0", None),
        ("Installing collected packages: a, b, c", "unpacking 3 packages"),
        ("Installing collected packages: a", "unpacking 1 package"),
        ("Successfully installed a-1 b-2", None),
        ("", None),
    ],
)
def test_activities(line: str, activity: str | None) -> None:
    assert pip.activity(line) == activity


def test_a_count_of_bytes_names_its_package() -> None:
    now = pip.activity("Progress 0 of 285800000", "triton (285.8 MB)")
    assert now == "triton 0 of 286 MB"
    assert pip.activity("Progress 71000000 of 285800000", now) == "triton 71 of 286 MB"


def test_the_users_pip_configuration_holds_where_it_can(tmp_path: Path) -> None:
    inherited = {
        "PATH": "/bin",
        "PIP_INDEX_URL": "http://index.example/simple",
        "PIP_USER": "1",
        "PIP_TARGET": "/elsewhere",
        "PYTHONPATH": "/gateway",
    }
    made = pip.environment(inherited, tmp_path)
    assert made["PIP_INDEX_URL"] == "http://index.example/simple"
    assert made["TMPDIR"] == str(tmp_path)
    assert not {"PIP_USER", "PIP_TARGET", "PYTHONPATH"} & set(made)


@pytest.mark.parametrize(
    ("version", "option"),
    [("26.3", "raw"), ("24.1", "raw"), ("24.0", "off"), ("23.2.1", "off"), ("0", "off")],
)
def test_only_a_pip_that_can_counts_its_downloads(version: str, option: str) -> None:
    assert pip.progress_bar(version) == f"--progress-bar={option}"


def test_a_program_is_the_environments_own_pip(tmp_path: Path) -> None:
    arguments = pip.install_arguments(["a==1"], closed=True)
    made = pip.program("a", Path("/e/bin/python"), arguments, log=tmp_path, temporary=tmp_path)
    assert made.arguments[:4] == ["/e/bin/python", "-I", "-m", "pip"]
    assert {"--no-deps", "--no-compile", "a==1"} <= set(made.arguments)
    assert "--no-deps" not in pip.install_arguments(["a==1"], closed=False)
