"""The served models and the server's state: /v1/models, /health, /ping, /version, /load.

Also the paths of embeddings and scores, which the models here do not have.
"""

from __future__ import annotations

from typing import Any

import fastapi
from starlette.responses import Response

from specdec_native import _core
from specdec_serve.http.errors import ApiError
from specdec_serve.http.service import Service

_EMBEDDINGS = (
    *("/v1/embeddings", "/embeddings", "/embedding", "/pooling", "/classify"),
    *("/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank"),
)


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the routes."""

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "specdec_native",
            "root": str(service.engine.model_directory),
            "parent": None,
            "max_model_len": service.max_model_len,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in service.options.model_names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if not name:
            raise ApiError(404, "The path needs the name of a model.", param="model")
        service.check_model(name)
        return card(name)

    @app.get("/health")
    @app.get("/ping")
    @app.post("/ping")
    async def health() -> Response:
        return Response(status_code=200 if service.is_well() else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": _core.__version__}

    @app.get("/load")
    async def load() -> dict[str, int]:
        if not service.options.track_load:
            raise ApiError(404, "start the server with --enable-server-load-tracking")
        return {"server_load": service.num_open}

    async def refuse_embeddings() -> Response:
        raise ApiError(
            404, "This server's models generate text; embeddings and scores are not served."
        )

    for path in _EMBEDDINGS:
        app.post(path, include_in_schema=False)(refuse_embeddings)
