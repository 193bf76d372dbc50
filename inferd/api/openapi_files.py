"""The paths of files in the published document, made of the rules that check them."""

from __future__ import annotations

from typing import Any, Final

from inferd.api import file_fields, uploads
from inferd.api.files import LIMIT_MAX, ORDERS
from inferd.api.openapi_requests import TEXT, closed, nullable
from inferd.storage.files import FILE_ID
from inferd.storage.uploads import PARTS_MAX, UploadStatus

Schema = dict[str, Any]

_JSON: Final = "application/json"
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_KEY: Final = {
    "401": "No key, or a wrong one.",
    "429": "Too many transfers; `retry-after` tells when to try again.",
    "500": "A fault of inferd.",
    "503": "The file store cannot be used now.",
}
_SENT: Final = {
    "400": "The request is wrong; `param` and the message name what.",
    "403": "The team keeps as much as it may.",
    "408": "The body came too slowly.",
    "409": "The Idempotency-Key was used for another request.",
    "413": "The file is too large.",
    **_KEY,
}
_OF_UPLOAD: Final = {**_SENT, "404": "The team has no such upload."}
_NAMED: Final = {"404": "The team has no such file.", **_KEY}

_FILE_PROPERTIES: Final[Schema] = {
    "id": {"type": "string", "pattern": f"^{FILE_ID}$"},
    "object": {"const": "file"},
    "bytes": _COUNT,
    "created_at": _COUNT,
    "expires_at": nullable(_COUNT),
    "filename": TEXT,
    "purpose": {"enum": list(file_fields.PURPOSES)},
    "status": {"const": "processed"},
    "status_details": {"type": "null"},
}
_UPLOAD_PROPERTIES: Final[Schema] = {
    "id": TEXT,
    "object": {"const": "upload"},
    "bytes": _COUNT,
    "created_at": _COUNT,
    "filename": TEXT,
    "purpose": dict(file_fields.purpose.schema),
    "status": {"enum": [status.value for status in UploadStatus]},
    "expires_at": _COUNT,
    "file": nullable({"$ref": "#/components/schemas/File"}),
}
SCHEMAS: Final[dict[str, Schema]] = {
    "File": closed(_FILE_PROPERTIES, *_FILE_PROPERTIES),
    "FileForm": closed(
        {
            "file": {"type": "string", "description": "The bytes, with a filename."},
            "purpose": dict(file_fields.purpose.schema),
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": dict(file_fields.life_s.schema["properties"])["seconds"],  # type: ignore[call-overload]
        },
        *("file", "purpose"),
    ),
    "Upload": closed(_UPLOAD_PROPERTIES, *_UPLOAD_PROPERTIES),
    "UploadRequest": closed(
        {
            "bytes": dict(uploads.CREATE["bytes"].schema),
            "filename": dict(file_fields.filename.schema),
            "mime_type": dict(file_fields.mime_type.schema),
            "purpose": dict(file_fields.purpose.schema),
            "expires_after": nullable(dict(file_fields.life_s.schema)),
        },
        *uploads.REQUIRED,
    ),
    "UploadCompletion": closed(
        {
            "part_ids": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": PARTS_MAX},
            "md5": nullable({"type": "string", "pattern": "^[0-9A-Fa-f]{32}$"}),
        },
        "part_ids",
    ),
    "UploadPartForm": closed({"data": {"type": "string", "description": "The bytes."}}, "data"),
    "UploadPart": closed(
        {
            "id": TEXT,
            "object": {"const": "upload.part"},
            "created_at": _COUNT,
            "upload_id": TEXT,
        },
        *("id", "object", "created_at", "upload_id"),
    ),
}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _answers(answer: Schema, errors: dict[str, str]) -> Schema:
    told = {_JSON: {"schema": _reference("Error")}}
    return {
        "200": {"description": "The answer.", "content": {_JSON: {"schema": answer}}},
        **{status: {"description": why, "content": told} for status, why in errors.items()},
    }


def _operation(name: str, summary: str, answer: Schema, errors: dict[str, str]) -> Schema:
    return {"operationId": name, "summary": summary, "responses": _answers(answer, errors)}


def _sent(name: str, summary: str, body: str) -> Schema:
    return {
        **_operation(name, summary, _reference("Upload"), _OF_UPLOAD),
        "requestBody": {"required": True, "content": {_JSON: {"schema": _reference(body)}}},
    }


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


_ID: Final[Schema] = {"name": "id", "in": "path", "required": True, "schema": TEXT}
_GONE: Final = closed(
    {"id": TEXT, "object": {"const": "file"}, "deleted": {"const": True}},
    *("id", "object", "deleted"),
)
_PAGE: Final = closed(
    {
        "object": {"const": "list"},
        "data": {"type": "array", "items": _reference("File")},
        "first_id": nullable(TEXT),
        "last_id": nullable(TEXT),
        "has_more": {"type": "boolean"},
    },
    *("object", "data", "first_id", "last_id", "has_more"),
)
_LIST_QUERY: Final = [
    _query("purpose", {"type": "string", "enum": list(file_fields.PURPOSES)}),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX}),
    _query("order", {"type": "string", "enum": list(ORDERS)}),
    _query("after", {"type": "string", "pattern": f"^{FILE_ID}$"}),
]
_BYTES: Final[Schema] = {"description": "The bytes.", "content": {"application/octet-stream": {}}}
_OF_CONTENT: Final = {**_NAMED, "416": "The range lies behind the end."}

PATHS: Final[dict[str, Schema]] = {
    "/v1/files": {
        "post": {
            **_operation("createFile", "Upload a file.", _reference("File"), _SENT),
            "requestBody": {
                "required": True,
                "content": {"multipart/form-data": {"schema": _reference("FileForm")}},
            },
        },
        "get": {
            **_operation("listFiles", "The team's files.", _PAGE, {"400": _SENT["400"], **_KEY}),
            "parameters": _LIST_QUERY,
        },
    },
    "/v1/files/{id}": {
        "parameters": [_ID],
        "get": _operation("getFile", "One file.", _reference("File"), _NAMED),
        "delete": _operation("deleteFile", "Delete a file.", _GONE, _NAMED),
    },
    "/v1/files/{id}/content": {
        "parameters": [_ID],
        "get": {
            "operationId": "getFileContent",
            "summary": "A file's bytes, whole or one range.",
            "responses": {**_answers({}, _OF_CONTENT), "200": _BYTES, "206": _BYTES},
        },
    },
    "/v1/uploads": {
        "post": _sent("createUpload", "Announce a file that comes in parts.", "UploadRequest")
    },
    "/v1/uploads/{id}/parts": {
        "parameters": [_ID],
        "post": {
            **_operation("addUploadPart", "Send a part.", _reference("UploadPart"), _OF_UPLOAD),
            "requestBody": {
                "required": True,
                "content": {"multipart/form-data": {"schema": _reference("UploadPartForm")}},
            },
        },
    },
    "/v1/uploads/{id}/complete": {
        "parameters": [_ID],
        "post": _sent("completeUpload", "Make a file of the parts.", "UploadCompletion"),
    },
    "/v1/uploads/{id}/cancel": {
        "parameters": [_ID],
        "post": _operation("cancelUpload", "Give an upload up.", _reference("Upload"), _OF_UPLOAD),
    },
}
