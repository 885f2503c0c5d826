"""The description of the API at /openapi.json."""

from __future__ import annotations

from typing import Any

import fastapi
from fastapi.openapi.utils import get_openapi

from specdec_serve.http.errors import is_anthropic
from specdec_serve.http.service import Service

_ANTHROPIC_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "additionalProperties": False,
        },
        "request_id": {"type": ["string", "null"]},
    },
    "additionalProperties": False,
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field that is wrong."},
                "code": {"type": "integer", "description": "The status."},
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
_STATUSES = {
    "400": "The request is wrong; `param` names the field.",
    "401": "A key is missing or wrong.",
    "404": "There is no such model, or nothing at this path.",
    "408": "The body has not come in time.",
    "413": "The body is too long.",
    "500": "The request or the engine has failed.",
    "503": "The queue is full or the server ends; Retry-After says when to ask again.",
}


def describe(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the served models and the possible errors to the description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app, service)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema(app: fastapi.FastAPI, service: Service) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    parts = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's 422 is never answered
        parts.pop(name, None)
    for part in parts.values():
        if "model" in part.get("properties", {}):
            part["properties"]["model"]["enum"] = [*service.options.model_names, None]
    parts |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for path, operations in schema["paths"].items():
        name = "AnthropicError" if is_anthropic(path) else "Error"
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        for operation in operations.values():
            answers = operation["responses"]
            answers.pop("422", None)
            for status, meaning in _STATUSES.items():
                if "requestBody" in operation or status in ("401", "404"):
                    answers.setdefault(status, {"description": meaning, "content": content})
    return schema
