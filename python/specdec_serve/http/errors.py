"""Errors in the format of OpenAI's clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

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

    def response(self) -> Response:
        """The answer."""
        return Response(
            json.dumps(self.body()),
            status_code=self.status,
            media_type="application/json",
            headers=self.headers,
        )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The request cannot be served as it is; `param` is the field to change."""
    return ApiError(400, message, param=param)
