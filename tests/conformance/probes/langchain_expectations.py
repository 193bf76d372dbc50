"""A plug-in for langchain's suites: what only a model that follows its prompt can pass.

The engines of these runs write noise, or the little that 135 million parameters can: whether a tool
is called when nobody forces it, and which one, says nothing of the gateway. A JSON string that the
model does not end is an answer cut by `max_tokens`, and told as that: the SDK's error for it.
"""

from __future__ import annotations

import os

import openai
import pytest

NEEDS_A_MIND = (
    "test_agent_loop",
    "test_json_mode",
    "test_structured_few_shot_examples",
    "test_tool_calling[",
    "test_tool_calling_async",
    "test_tool_calling_with_no_arguments",
    "test_unicode_tool_call_integration",
)


UNENDED = ("test_bind_runnables_as_tools", "test_structured_output_pydantic_2_v1")
"""They get nothing of a call whose string the model did not end."""
SMALL = os.environ["ENGINE_KIND"] == "real"
"""The demo model writes. The fake engine ends what it begins."""


def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in f"{item.name}[" for name in NEEDS_A_MIND):
            item.add_marker(pytest.mark.xfail(reason="needs a model that follows its prompt"))
        elif SMALL and item.name in UNENDED:
            item.add_marker(pytest.mark.xfail(reason="the model did not end its JSON"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    cut = isinstance(error, openai.LengthFinishReasonError)
    if SMALL and cut and "test_structured_output" in item.nodeid:
        outcome.force_exception(pytest.xfail.Exception("the model did not end its JSON"))
