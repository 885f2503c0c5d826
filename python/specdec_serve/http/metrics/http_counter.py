"""http_requests_total: answers by route, method and class of status."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_vllm.metrics import Counter, Metric

# Machines poll these paths all the time; they say nothing about clients.
_UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version"}
_NO_ROUTE = "none"


class HttpCounter:
    """Counts answers as they begin. One thread counts; another may read meanwhile."""

    def __init__(self) -> None:
        self._counts: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def around(self, app: ASGIApp) -> ASGIApp:
        """`app` with its answers counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status: int | None = None

            async def watched(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start" and status is None:
                    status = message["status"]
                    self._count(scope, status)
                await send(message)

            try:
                await app(scope, receive, watched)
            except Exception:
                if status is None:
                    self._count(scope, 500)
                raise

        return counted

    def metrics(self) -> Iterator[tuple[str, list[Metric]]]:
        """The counts, in the form of RequestObserver.metrics()."""
        counters: list[Metric] = [
            Counter(
                "http_requests",
                {"handler": handler, "method": method, "status": status},
                count,
            )
            for (handler, method, status), count in self._counts.copy().items()
        ]
        if counters:
            yield "Answers by route, method and class of status.", counters

    def _count(self, scope: Scope, status: int) -> None:
        # The router stores the route here. Unknown paths share one label.
        handler = getattr(scope.get("route"), "path", _NO_ROUTE)
        if handler not in _UNCOUNTED:
            self._counts[handler, scope["method"], f"{status // 100}xx"] += 1
