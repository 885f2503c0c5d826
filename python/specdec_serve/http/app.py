"""The API as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import fastapi.exceptions
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from specdec_serve.http import (
    anthropic,
    chat,
    completions,
    infill,
    models,
    operator,
    page,
    responses,
    tokenize,
)
from specdec_serve.http.errors import ApiError, bad_request
from specdec_serve.http.metrics import routes as metrics
from specdec_serve.http.middleware import Heads, add_middleware
from specdec_serve.http.openapi import describe
from specdec_serve.http.service import Service
from specdec_serve.http.sse import Disconnected

_TYPES = ("str", "int", "float", "bool")
_KIND = "Input should be "  # pydantic's errors about types begin so
_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; for logs


def make_app(service: Service) -> fastapi.FastAPI:
    """All routes over one engine; without metrics where the engine runs elsewhere."""

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        async with metrics.logging_summaries(service):
            yield

    app = fastapi.FastAPI(
        title="specdec_native",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if service.options.openapi else None,
        redirect_slashes=False,  # a redirect fails where the query is not UTF-8
        lifespan=lifespan,
    )
    for routes in (
        *(models, completions, infill, chat, responses, anthropic, tokenize, operator, page),
    ):
        routes.add_routes(app, service)
    describe(app, service)
    _add_error_handlers(app)
    add_middleware(app, service.options)
    if service.statistics is not None:
        # Last, because it also counts answers of the middleware.
        metrics.add_routes(app, service, service.statistics)
    app.add_middleware(Heads)
    return app


def _add_error_handlers(app: fastapi.FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(http: Request, error: ApiError) -> Response:
        return error.response(http.scope)

    @app.exception_handler(fastapi.exceptions.RequestValidationError)
    async def bad_body(http: Request, error: fastapi.exceptions.RequestValidationError) -> Response:
        if isinstance(error.body, bytes):  # FastAPI has not parsed it
            wrong = bad_request("Content-Type must be application/json", "body")
        else:
            wrong = as_bad_request(error.errors())
        return wrong.response(http.scope)

    @app.exception_handler(HTTPException)
    async def http_error(http: Request, error: HTTPException) -> Response:
        message = str(error.detail)
        if isinstance(error.__cause__, (ValueError, RecursionError)):  # FastAPI read a body
            message = f"body: {error.__cause__!s:.200}"
        return ApiError(error.status_code, message, headers=error.headers).response(http.scope)

    @app.exception_handler(Disconnected)
    async def disconnected(_: Request, __: Disconnected) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def failed(http: Request, _: Exception) -> Response:
        return ApiError(500, "An internal error has ended the request.").response(http.scope)


def as_bad_request(errors: Any) -> ApiError:
    """The first of pydantic's errors, under the name of the field that the client sent.

    A field of several types has an error per type; these become one.
    """
    first = errors[0]
    field = _field_of(first)
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        where = first["loc"][-1]
        return bad_request(f"{field}: not valid JSON: {why}, at character {where}", field)
    wrong = dict.fromkeys(error["msg"] for error in errors if _field_of(error) == field)
    kinds = [message.removeprefix(_KIND) for message in wrong if message.startswith(_KIND)]
    message = _KIND + ", or ".join(kinds) if len(kinds) > 1 else next(iter(wrong))
    return bad_request(f"{field}{_rest(first)}: {message}", field)


def _rest(error: Any) -> str:
    """The location within the field, such as ".name"; pydantic appends the types that it tried."""
    parts = []
    for part in error["loc"][2:]:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part in _TYPES or "[" in part or "-" in part:
            break
        else:
            parts.append(f".{part}")
    return "".join(parts)


def _field_of(error: Any) -> str:
    """The field, or "body" for the whole body. The parts after the field are types."""
    field = error["loc"][1] if len(error["loc"]) > 1 else ""
    return field if isinstance(field, str) and field else "body"
