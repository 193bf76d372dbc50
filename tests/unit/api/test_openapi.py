"""The published document says what is served: routes, parameters and their bounds, nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from inferd.api import openapi
from inferd.api.batches import BatchApi
from inferd.api.files import FilesApi
from inferd.api.inference_endpoint import InferenceEndpoint, Operation
from inferd.api.operations import OPERATIONS
from inferd.api.parsed import ParsedRequest
from inferd.api.routes import public_app
from inferd.api.uploads import UploadsApi
from inferd.errors import RequestError
from inferd.inference import ModelKind, ModelLimits, Priority

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = openapi.document()
LIMITS = ModelLimits(
    name="demo",
    context_tokens_max=100_000,
    output_tokens_max=512,
    choices_max=8,
    reasoning=True,
    kind=ModelKind.CHAT,
    vocabulary_tokens=2**31,
)
REQUIRED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
}


def routes() -> set[tuple[str, str]]:
    class Nothing:
        def __getattr__(self, name: str) -> Any:
            async def handler(http: Any) -> None:
                """Never called."""

            return handler

    endpoints = [InferenceEndpoint.__new__(InferenceEndpoint) for _ in OPERATIONS]
    for endpoint, operation in zip(endpoints, OPERATIONS, strict=True):
        endpoint._operation = operation
    nothing: Any = Nothing()
    stored = [
        *FilesApi(nothing, nothing, nothing).routes(),
        *UploadsApi(nothing, nothing, nothing).routes(),
        *BatchApi(nothing, nothing, nothing, nothing).routes(),
    ]
    app = public_app(endpoints, nothing, nothing, lambda *_: None, (), stored)
    found = set()
    for route in app._routes:  # type: ignore[attr-defined]
        assert isinstance(route, Route)
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        found |= {(path, method) for method in route.methods or () if method != "HEAD"}
    return found


def test_the_paths_are_the_routes() -> None:
    documented = {
        (path, method.upper())
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert documented == routes()


def test_the_file_in_docs_is_the_document() -> None:
    assert (DOCS / "openapi.json").read_bytes() == openapi.encoded()


def test_every_reference_resolves() -> None:
    names = set(re.findall(rb'"#/components/schemas/(\w+)"', openapi.encoded()))
    assert {name.decode() for name in names} == set(DOCUMENT["components"]["schemas"])


def request_schema(operation: Operation) -> dict[str, Any]:
    body = DOCUMENT["paths"][operation.endpoint.value]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema: dict[str, Any] = DOCUMENT["components"]["schemas"][name]
    return schema


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.endpoint.value)
def test_the_parameters_are_those_of_the_tables(operation: Operation) -> None:
    tables = operation.tables
    schema = request_schema(operation)
    served = {"model", *tables.honoured, *tables.gateway, *tables.accepted}
    assert set(schema["properties"]) == served
    assert not served & set(tables.refused)
    assert schema["additionalProperties"] is False


def sent(operation: Operation, name: str, value: Any) -> ParsedRequest:
    required = {key: REQUIRED[key] for key in operation.required or ("prompt",)}
    companions: dict[str, Any] = {"logprobs": True} if name == "top_logprobs" else {}
    if operation.endpoint.value == "/v1/responses" or "logprobs" not in operation.tables.honoured:
        companions = {}
    raw = json.dumps({"model": "demo", **required, **companions, name: value}).encode()
    return operation.parse(raw, lambda _name: LIMITS, Priority.INTERACTIVE)


def plain_rules() -> list[Any]:
    """Parameters whose schema is a number or a word: what it allows can be tried at its edges."""
    return [
        pytest.param(operation, name, dict(rule.schema), id=f"{operation.endpoint}-{name}")
        for operation in OPERATIONS
        for name, rule in {
            **operation.tables.honoured,
            **operation.tables.gateway,
            **operation.tables.accepted,
        }.items()
        if {"maximum", "enum"} & set(rule.schema) and "exclusiveMinimum" not in rule.schema
    ]


@pytest.mark.parametrize(("operation", "name", "schema"), plain_rules())
def test_the_bounds_are_those_that_are_checked(
    operation: Operation, name: str, schema: dict[str, Any]
) -> None:
    if "enum" in schema:
        inside, outside = schema["enum"], ["nonsense"]
    else:
        inside = [schema["minimum"]]
        outside = [schema["minimum"] - 1, schema["maximum"] + 1]
    if name == "dimensions":
        inside = []  # the model's own sizes are narrower
    for value in inside:
        try:
            sent(operation, name, value)
        except RequestError as error:
            assert error.code == "invalid_parameter_combination", error.message  # noqa: PT017
    for value in outside:
        with pytest.raises(RequestError) as caught:
            sent(operation, name, value)
        assert (caught.value.param or "").startswith(name)
