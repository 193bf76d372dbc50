from __future__ import annotations

from pathlib import Path

import pytest

from inferd.cli.serve import _tell_all
from inferd.errors import ConfigError, StartError


def test_every_reason_of_a_dead_service_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    group = BaseExceptionGroup(
        "",
        [
            ExceptionGroup("", [StartError("a"), ConfigError(["inferd.toml:1: b", "c"])]),
            RuntimeError("the database writer died"),
            KeyError(),
        ],
    )
    _tell_all(group, Path("state/inferd.log"))
    assert capsys.readouterr().err.splitlines() == [
        "inferd: a",
        "inferd.toml:1: b",
        "c",
        "inferd: the database writer died; the log, state/inferd.log, tells more",
        "inferd: KeyError; the log, state/inferd.log, tells more",
    ]
