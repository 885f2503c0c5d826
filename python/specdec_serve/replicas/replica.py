"""An engine that runs the work of an ingress."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from specdec_native.engine import Engine
from specdec_native.errors import EngineFailed
from specdec_native.options.vllm_config import VllmConfig
from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import RequestOutput
from specdec_serve.replicas.failover import Outputs, Work


class Replica:
    """One engine and its health. Used by one event loop."""

    def __init__(self, model: str, engine_options: Mapping[str, Any]) -> None:
        self._engine = Engine(model, **engine_options)
        self._failure: EngineFailed | None = None

    def vllm_config(self) -> VllmConfig:
        """The engine's resolved options."""
        return self._engine.vllm_config

    async def reset_prefix_cache(self) -> int:
        """Engine.reset_prefix_cache, between two steps."""
        return await asyncio.to_thread(self._engine.reset_prefix_cache)

    def check(self) -> None:
        """Raises EngineFailed once the engine has failed, even while it is idle."""
        if self._failure is not None:
            raise self._failure
        self._engine.check_health()

    async def run(self, work: Work) -> AsyncGenerator[Outputs, None]:
        """Yields the outputs of the work, without prompts. Closing it aborts the work."""
        try:
            requests = await asyncio.to_thread(
                self._engine.prepare,
                [
                    Prompt(
                        None,
                        item.prompt_token_ids,
                        cache_salt=item.cache_salt,
                        resumed_token_ids=item.resumed_token_ids,
                    )
                    for item in work.items
                ],
                [item.params for item in work.items],
                priority=[item.priority for item in work.items],
            )
            group = self._engine.start(requests, interval=work.interval)
            try:
                async for outputs in group:
                    yield [(index, _without_prompt(output)) for index, output in outputs]
            finally:
                group.abort()
        except EngineFailed as error:
            self._failure = error
            raise


def _without_prompt(output: RequestOutput) -> RequestOutput:
    return dataclasses.replace(output, prompt=None, prompt_token_ids=None)
