"""GET /metrics, and the counting of requests and answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import fastapi
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from specdec_serve.http.metrics.collector import EngineCollector, make_registry
from specdec_serve.http.metrics.http_counter import HttpCounter
from specdec_serve.http.metrics.observer import RequestObserver
from specdec_serve.http.metrics.summary import log_summaries
from specdec_serve.http.served_engine import EngineStatistics
from specdec_serve.http.service import Service


def add_routes(app: fastapi.FastAPI, service: Service, statistics: EngineStatistics) -> None:
    """Adds the route, and starts counting the service's requests and the app's answers."""
    observer = RequestObserver(service.model_name, service.max_model_len, service.options)
    http = HttpCounter()
    service.observer = observer
    app.add_middleware(http.around)
    registry = make_registry(EngineCollector(statistics, service.model_name, observer, http))

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        try:
            page = await asyncio.to_thread(generate_latest, registry)
        except Exception as error:
            raise service.as_api_error(error) from error
        return Response(page, media_type=CONTENT_TYPE_LATEST)


@contextlib.asynccontextmanager
async def logging_summaries(service: Service) -> AsyncIterator[None]:
    """Logs summaries inside the block, if options.log_stats and the engine counts."""
    if service.statistics is None or not service.options.log_stats:
        yield
        return
    task = asyncio.ensure_future(log_summaries(service.statistics))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
