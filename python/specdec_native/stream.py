"""One request's outputs, as an iterator."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from specdec_native.outputs import RequestOutput
from specdec_native.request import Request

if TYPE_CHECKING:
    from specdec_native.engine import Engine


class RequestStream(Iterator[RequestOutput]):
    """The outputs of one request as they come."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request

    @property
    def request_id(self) -> str:
        """The request's id, for Engine.abort()."""
        return self._request.request_id

    def __iter__(self) -> RequestStream:
        return self

    def __next__(self) -> RequestOutput:
        output = self._engine._next_output(self._request)
        if output is None:
            raise StopIteration
        return output

    def close(self) -> None:
        """Aborts the request if it is unfinished; iteration ends."""
        self._engine._give_up([self._request])

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # May run anywhere, even in a thread that holds the engine's lock: never wait for it.
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine._give_up([self._request], wait=False)
