"""The OpenAPI 3.1 document of the public API, made of the tables that requests are checked with.

Served at /openapi.json without a key; `docs/openapi.json` is the same. A test compares them with
the routes and tables. `python -m inferd.api.openapi` prints it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

import inferd
from inferd.api import openapi_batches, openapi_files
from inferd.api.inference_endpoint import Operation
from inferd.api.openapi_answers import (
    ANSWERS,
    ERROR,
    HEALTH,
    MODEL,
    MODELS,
)
from inferd.api.openapi_requests import REQUEST_SCHEMAS, closed, nullable
from inferd.api.operations import OPERATIONS
from inferd.api.parsed import model_name
from inferd.inference import Endpoint

PATH: Final = "/openapi.json"
Schema = dict[str, Any]

_JSON: Final = "application/json"
_STREAM: Final = "text/event-stream"
_NULL_IS_A_VALUE: Final = {(Endpoint.COMPLETIONS, "prompt")}
_ERRORS: Final = {
    "400": "The request is wrong; `param` and the message name what.",
    "401": "No key, or a wrong one.",
    "403": "The key may not use this model.",
    "404": "There is no such model.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "429": "A limit is reached, or the queue is full; `retry-after` tells when to try again.",
    "500": "A fault of inferd.",
    "502": "The worker was lost.",
    "503": "No worker serves this model now.",
    "504": "The request took longer than it may.",
}
_KEY_ERRORS: Final = ("401", "403", "404", "500")


class Document:
    """The endpoint that serves it."""

    def __init__(self) -> None:
        self._body = encoded()

    async def get(self, http: Request) -> Response:
        del http
        return Response(self._body, media_type=_JSON)


def encoded() -> bytes:
    """The document as it is served, with a line feed at its end."""
    return orjson.dumps(document(), option=orjson.OPT_INDENT_2) + b"\n"


def document() -> Schema:
    """The whole document."""
    schemas: dict[str, Schema] = {"Error": ERROR, **REQUEST_SCHEMAS, "Model": MODEL}
    schemas |= openapi_files.SCHEMAS | openapi_batches.SCHEMAS
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        name, answer = ANSWERS[operation.endpoint]
        schemas[name] = answer
        schemas[f"{name}Request"] = _request(operation)
        paths[operation.endpoint.value] = {"post": _post(operation, name)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "inferd",
            "version": inferd.__version__,
            "description": "The part of the OpenAI API that this gateway serves, and nothing else.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}],
        "paths": {**paths, **openapi_files.PATHS, **openapi_batches.PATHS, **_gets()},
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    }


def _request(operation: Operation) -> Schema:
    """A body: `model` and everything that stands in a table and is not refused."""
    tables = operation.tables
    properties: Schema = {"model": dict(model_name.schema)}
    for name, rule in {**tables.honoured, **tables.gateway, **tables.accepted}.items():
        schema = dict(rule.schema)
        required = name in operation.required
        if not required or (operation.endpoint, name) in _NULL_IS_A_VALUE:
            schema = nullable(schema)
        if name in tables.accepted:
            schema["description"] = "Checked, without effect."
        properties[name] = schema
    return closed(properties, "model", *operation.required)


def _post(operation: Operation, answer: str) -> Schema:
    content = {_JSON: {"schema": _reference(answer)}}
    if operation.relay is not None:
        content[_STREAM] = {}  # events are not described in JSON Schema
    return {
        "operationId": answer[0].lower() + answer[1:],
        "summary": operation.summary,
        "requestBody": {
            "required": True,
            "content": {_JSON: {"schema": _reference(f"{answer}Request")}},
        },
        "responses": {"200": {"description": "The answer.", "content": content}, **_errors()},
    }


def _gets() -> dict[str, Schema]:
    model = {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "A name, an alias, or name@version.",
        "schema": {"type": "string", "minLength": 1},
    }
    unready = {"503": {"description": "No.", "content": {_JSON: {"schema": HEALTH}}}}
    return {
        "/v1/models": _get("listModels", "What the key may use.", MODELS, _errors(*_KEY_ERRORS)),
        "/v1/models/{model}": {
            "parameters": [model],
            **_get("getModel", "One model.", _reference("Model"), _errors(*_KEY_ERRORS)),
            "delete": {
                "operationId": "deleteModel",
                "summary": "Always refused: models are the operator's.",
                "responses": _errors(*_KEY_ERRORS),
            },
        },
        "/healthz": _get("isAlive", "The process answers.", HEALTH, None),
        "/readyz": _get("isReady", "Requests are taken.", HEALTH, unready),
        PATH: _get("getDocument", "This document.", {"type": "object"}, None),
    }


def _get(name: str, summary: str, answer: Schema, errors: Schema | None) -> Schema:
    """`errors` of a path that needs no key are None or its own."""
    operation: Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": {_JSON: {"schema": answer}}},
            **(errors or {}),
        },
    }
    if errors is None or "401" not in errors:
        operation["security"] = []
    return {"get": operation}


def _errors(*statuses: str) -> Schema:
    content = {_JSON: {"schema": _reference("Error")}}
    return {
        status: {"description": _ERRORS[status], "content": content}
        for status in statuses or _ERRORS
    }


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


if __name__ == "__main__":
    sys.stdout.buffer.write(encoded())
