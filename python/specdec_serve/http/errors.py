"""Errors in the formats of OpenAI's and of Anthropic's clients."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

_TYPES = {
    400: "BadRequestError",
    401: "Unauthorized",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_PATH = re.compile(r"/v1/messages(/|$)")  # a proxy's prefix may stand before it
_MAX_MESSAGE = 1000  # characters; a message may quote what a client sent
_MAX_PARAM = 100


class ApiError(Exception):
    """Becomes an answer with this status, or an event of a stream that has begun.

    Attributes:
        status: HTTP's status code.
        param: the field of the request that is wrong, or None.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_cut(message, _MAX_MESSAGE))
        self.status = status
        self.param = None if param is None else _cut(param, _MAX_PARAM)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = _TYPES.get(self.status) or HTTPStatus(self.status).phrase.replace(" ", "")
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.status,
            }
        }

    def anthropic_body(self, request_id: str | None) -> dict[str, Any]:
        """The same in Anthropic's form, whose message alone names the field."""
        kind = "invalid_request_error" if self.status < 500 else "api_error"
        return {
            "type": "error",
            "error": {"type": _ANTHROPIC_TYPES.get(self.status, kind), "message": str(self)},
            "request_id": request_id,
        }

    def response(self, scope: Scope) -> Response:
        """The answer, in the form of the API that the request's path belongs to."""
        body = self.body()
        if is_anthropic(scope["path"]):
            body = self.anthropic_body(scope.get("state", {}).get("request_id"))
        return Response(
            json.dumps(body),
            status_code=self.status,
            media_type="application/json",
            headers=self.headers,
        )


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's Messages API."""
    return _ANTHROPIC_PATH.search(path) is not None


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The request cannot be served as it is; `param` is the field to change."""
    return ApiError(400, message, param=param)
