"""The paths of batches in the published document, made of the rules that check them."""

from __future__ import annotations

from typing import Any, Final

from inferd.api.batches import FIELDS, LIMIT_MAX, PATH, REQUIRED
from inferd.api.openapi_requests import TEXT, closed, nullable
from inferd.batch.jobs import JobState
from inferd.batch.lines import ENDPOINTS

Schema = dict[str, Any]

_JSON: Final = "application/json"
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TIME: Final = nullable(_COUNT)
_KEY: Final = {"401": "No key, or a wrong one.", "500": "A fault of inferd."}
_NAMED: Final = {"404": "The team has no such batch.", **_KEY}


def _all(**properties: Schema) -> Schema:
    """Closed, with every key required."""
    return closed(properties, *properties)


_TIMES: Final = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)
_BATCH: Final = _all(
    id=TEXT,
    object={"const": "batch"},
    endpoint={"enum": list(ENDPOINTS)},
    model=nullable(TEXT),
    errors=nullable(
        _all(
            object={"const": "list"},
            data={
                "type": "array",
                "items": _all(code=TEXT, message=TEXT, param=nullable(TEXT), line=nullable(_COUNT)),
            },
        )
    ),
    input_file_id=TEXT,
    completion_window=TEXT,
    status={"enum": [state.value for state in JobState]},
    output_file_id=nullable(TEXT),
    error_file_id=nullable(TEXT),
    created_at=_COUNT,
    expires_at=_COUNT,
    **dict.fromkeys(_TIMES, _TIME),
    request_counts=_all(total=_COUNT, completed=_COUNT, failed=_COUNT),
    usage=_all(
        input_tokens=_COUNT,
        input_tokens_details=_all(cached_tokens=_COUNT),
        output_tokens=_COUNT,
        output_tokens_details=_all(reasoning_tokens=_COUNT),
        total_tokens=_COUNT,
    ),
    metadata=nullable({"type": "object", "additionalProperties": TEXT}),
    inferd=_all(
        estimated_completion_at=_TIME,
        in_time=nullable({"type": "boolean"}),
        cost={"type": "string", "pattern": "^[0-9]+[.][0-9]+$"},
        currency=TEXT,
    ),
)
SCHEMAS: Final[dict[str, Schema]] = {
    "Batch": _BATCH,
    "BatchRequest": closed(
        {
            name: dict(rule.schema) if name in REQUIRED else nullable(dict(rule.schema))
            for name, rule in FIELDS.items()
        },
        *REQUIRED,
    ),
}
_BATCH_REFERENCE: Final[Schema] = {"$ref": "#/components/schemas/Batch"}


def _operation(name: str, summary: str, answer: Schema, errors: dict[str, str]) -> Schema:
    told = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": {_JSON: {"schema": answer}}},
            **{status: {"description": why, "content": told} for status, why in errors.items()},
        },
    }


_ID: Final[Schema] = {"name": "id", "in": "path", "required": True, "schema": TEXT}
_PAGE: Final = _all(
    object={"const": "list"},
    data={"type": "array", "items": _BATCH_REFERENCE},
    first_id=nullable(TEXT),
    last_id=nullable(TEXT),
    has_more={"type": "boolean"},
)
_CREATED: Final = {
    "400": "The request is wrong; `param` and the message name what.",
    "408": "The body came too slowly.",
    "409": "The Idempotency-Key made another batch.",
    "413": "The body is too large.",
    "429": "The team has as many unfinished batches as it may.",
    **_KEY,
}

PATHS: Final[dict[str, Schema]] = {
    PATH: {
        "post": {
            **_operation("createBatch", "Run a file of requests.", _BATCH_REFERENCE, _CREATED),
            "requestBody": {
                "required": True,
                "content": {_JSON: {"schema": {"$ref": "#/components/schemas/BatchRequest"}}},
            },
        },
        "get": {
            **_operation(
                "listBatches", "The team's batches.", _PAGE, {"400": _CREATED["400"], **_NAMED}
            ),
            "parameters": [
                {
                    "name": "limit",
                    "in": "query",
                    "required": False,
                    "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX},
                },
                {"name": "after", "in": "query", "required": False, "schema": TEXT},
            ],
        },
    },
    f"{PATH}/{{id}}": {
        "parameters": [_ID],
        "get": _operation("getBatch", "One batch.", _BATCH_REFERENCE, _NAMED),
    },
    f"{PATH}/{{id}}/cancel": {
        "parameters": [_ID],
        "post": _operation(
            "cancelBatch",
            "Run no more of a batch.",
            _BATCH_REFERENCE,
            {**_NAMED, "409": "It has ended."},
        ),
    },
}
