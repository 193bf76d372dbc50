"""A team's limits on single models: each must mean something."""

from __future__ import annotations

import pytest

from tests.unit.config.test_checks import problems_of, replaced

LIMITS = [
    (
        'name = "mail"',
        'name = "mail"\nlimits = [{ model = "smal", requests_per_s = 1, burst_requests = 1 }]',
        '34: teams[1].limits[0].model: team mail has no model "smal" (did you mean "small"?)',
    ),
    (
        'name = "mail"',
        'name = "mail"\nlimits = [{ model = "smart", requests_per_s = 1, burst_requests = 1 }]',
        '34: teams[1].limits[0].model: "smart" is an alias: name large itself',
    ),
    (
        'name = "mail"',
        'name = "mail"\nlimits = [{ model = "small" }]',
        "34: teams[1].limits[0]: limits nothing: set tokens_per_s or requests_per_s",
    ),
    (
        'name = "mail"',
        'name = "mail"\nlimits = [{ model = "small", requests_per_s = 1 }]',
        "34: teams[1].limits[0].requests_per_s: needs burst_requests beside it",
    ),
    (
        'name = "mail"',
        'name = "mail"\nlimits = [{ model = "large", tokens_per_s = 9, burst_tokens = 4_096 }]',
        "34: teams[1].limits[0].burst_tokens: 4,096 can never admit a request without max_tokens",
    ),
    (
        'name = "mail"',
        (
            'name = "mail"\nlimits = [{ model = "small", requests_per_s = 1, burst_requests = 1 },'
            ' { model = "small", requests_per_s = 2, burst_requests = 1 }]'
        ),
        '34: teams[1].limits[1].model: "small" has limits already: teams[1].limits[0]',
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), LIMITS)
def test_a_limit_on_a_model_can_be_reached(old: str, new: str, expected: str) -> None:
    (problem,) = problems_of(replaced((old, new)))
    assert problem.startswith(expected)
