"""The engine's kits of tests, aimed at the gateway: what they ask of OpenAI endpoints.

Run by the engine's Python. The kits send no key and read `matched_stop`, which is the engine's own
and not the API's: the key is added here, and that field is left out of what is compared. What asks
for the engine's other endpoints is not run.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import unittest
from pathlib import Path

import requests

BASE_URL = os.environ["BASE_URL"].removesuffix("/v1")
API_KEY, MODEL = os.environ["API_KEY"], os.environ["MODEL"]
os.environ["OPENAI_API_KEY"] = API_KEY
KITS = Path(sysconfig.get_path("purelib")) / "sglang" / "test" / "kits"
TIMEOUT_S = 120


def kit(name):
    """A kit's module, without the package around it, which starts the engine's libraries."""
    spec = importlib.util.spec_from_file_location(name, KITS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class WithKey:
    """`requests` as the kits use it."""

    get = staticmethod(requests.get)

    @staticmethod
    def post(url, json, timeout=TIMEOUT_S):
        return requests.post(url, json=json, headers=HEADERS, timeout=timeout)


HEADERS = {"Authorization": f"Bearer {API_KEY}"}
contract, constrained, stops = map(
    kit, ("basic_api_contract_kit", "json_constrained_kit", "matched_stop_kit")
)
for module in (contract, stops):
    module.requests = WithKey
constrained.openai.Client = lambda api_key, base_url: __import__("openai").OpenAI(
    api_key=API_KEY, base_url=base_url
)


class TestContract(unittest.TestCase):
    base_url = BASE_URL
    served_model_name = MODEL
    test_openai_chat_completion = contract.BasicAPIContractMixin.test_openai_chat_completion
    test_openai_completion = contract.BasicAPIContractMixin.test_openai_completion


class TestJson(unittest.TestCase):
    base_url = BASE_URL
    model = MODEL
    # Bounded: a small model writes digits until it is cut off, and half a number is no JSON.
    json_schema = constrained.JSONConstrainedMixin.json_schema.replace(
        '"type": "integer"', '"type": "integer", "minimum": 0, "maximum": 99999999'
    )
    test_json_openai = constrained.JSONConstrainedMixin.test_json_openai


class TestStops(unittest.TestCase):
    """The kit's cases; the finish reason is compared, and `stop_regex` is refused by name."""

    base_url = BASE_URL
    test_finish_stop_str = stops.MatchedStopMixin.test_finish_stop_str
    test_finish_length = stops.MatchedStopMixin.test_finish_length
    test_finish_stop_regex_str = stops.MatchedStopMixin.test_finish_stop_regex_str

    def _ask(self, path, **body):
        fields = {"model": MODEL, "temperature": 0, "top_p": 1, **body}
        return WithKey.post(f"{BASE_URL}/v1/{path}", {k: v for k, v in fields.items() if v})

    def _compare(self, answer, stop_regex, finish_reason):
        if stop_regex is not None:
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "stop_regex"
            return
        assert answer.json()["choices"][0]["finish_reason"] == finish_reason
        assert "matched_stop" not in answer.text

    def _run_completions_generation(
        self,
        prompt=stops.MANY_NEW_TOKENS_PROMPT,
        max_tokens=1,
        stop=None,
        stop_regex=None,
        finish_reason=None,
        matched_stop=None,
    ):
        body = {"prompt": prompt, "max_tokens": max_tokens, "stop": stop, "stop_regex": stop_regex}
        self._compare(self._ask("completions", **body), stop_regex, finish_reason)

    def _run_chat_completions_generation(
        self,
        prompt=stops.MANY_NEW_TOKENS_PROMPT,
        max_tokens=1,
        stop=None,
        stop_regex=None,
        finish_reason=None,
        matched_stop=None,
    ):
        messages = [
            {"role": "system", "content": "You are a helpful AI assistant"},
            {"role": "user", "content": prompt},
        ]
        body = {"messages": messages, "max_tokens": max_tokens}
        body |= {"stop": stop, "stop_regex": stop_regex}
        self._compare(self._ask("chat/completions", **body), stop_regex, finish_reason)
