"""The engine for asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from specdec_native.engine import Engine
from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import EngineStats, RequestOutput
from specdec_native.requests.sampling_params import SamplingParams


class AsyncEngine:
    """An Engine whose waiting is done by coroutines, of any number of event loops.

    The engine steps in a thread of its own, and wakes an event loop at most once a step. Loading
    blocks, as does close() until the step under way is done.

    Attributes:
        engine: the Engine. Its other methods may be used beside these.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a request as they grow; see Engine.stream.

        The request is aborted when the generator is closed or the task that reads it is cancelled.
        """
        stream = self.engine.stream(
            prompt, sampling_params, request_id=request_id, priority=priority
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.abort()

    async def abort(self, request_id: str) -> bool:
        """Ends a request; False when it is unknown or finished. See Engine.abort."""
        return await asyncio.to_thread(self.engine.abort, request_id)

    async def stats(self) -> EngineStats:
        """Counts and times since the engine was made, and what runs now."""
        return await asyncio.to_thread(self.engine.stats)

    def close(self) -> None:
        """Aborts what runs and frees the model."""
        self.engine.close()
