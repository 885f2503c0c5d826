"""Endpoints for whoever operates a server, in vLLM's form: /server_info, /reset_prefix_cache."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

import fastapi
from starlette.responses import Response

from specdec_native import _core
from specdec_serve.http.chunks import dumps
from specdec_serve.http.errors import ApiError
from specdec_serve.http.service import Service


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the routes, which answer with options.operator_endpoints."""

    def check_enabled() -> None:
        if not service.options.operator_endpoints:
            raise ApiError(404, "start the server with --enable-operator-endpoints")

    @app.get("/server_info")
    async def server_info(config_format: Literal["text", "json"] = "text") -> Response:
        check_enabled()
        config = service.engine.vllm_config
        answer = {
            "version": _core.__version__,
            "model_names": service.options.model_names,
            "vllm_config": str(config) if config_format == "text" else _members(config),
        }
        return Response(json.dumps(answer, default=str), media_type="application/json")

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        check_enabled()
        try:
            num_dropped = await asyncio.to_thread(service.engine.reset_prefix_cache)
        except Exception as error:
            raise service.as_api_error(error) from error
        return Response(dumps({"num_dropped_blocks": num_dropped}), media_type="application/json")


def _members(value: Any) -> Any:
    """A configuration as dicts."""
    if isinstance(value, _core.ModelInfo):
        names = [name for name in dir(value) if not name.startswith("_")]
        return {name: getattr(value, name) for name in names}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _members(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {name: _members(member) for name, member in value.items()}
    return value
