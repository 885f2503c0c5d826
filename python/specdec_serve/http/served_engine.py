"""The engine interface that the service uses: specdec_native.Engine or RemoteEngine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from specdec_native import _core
from specdec_native.options.vllm_config import VllmConfig
from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import EngineLoad, EngineStats, RequestOutput
from specdec_native.requests.request import Request
from specdec_native.requests.request_builder import GenerationDefaults
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.text.chat_template import Message
from specdec_native.text.infill import InfillPrompt
from specdec_native.text.tokenizer import Tokenizer


class OutputGroup(Protocol):
    """The outputs of requests that were started together, with the index of each request."""

    def __aiter__(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]: ...
    async def __anext__(self) -> list[tuple[int, RequestOutput]]: ...
    def abort(self) -> None:
        """Ends the requests soon."""


class ServedEngine(Protocol):
    """Turns prompts into requests and runs them; see Engine for each member."""

    vllm_config: VllmConfig

    @property
    def model_directory(self) -> Path: ...  # noqa: D102
    @property
    def tokenizer(self) -> Tokenizer: ...  # noqa: D102
    @property
    def has_tokenizer(self) -> bool: ...  # noqa: D102
    def model_info(self) -> _core.ModelInfo: ...  # noqa: D102
    def check_health(self) -> None: ...  # noqa: D102
    def generation_defaults(self) -> GenerationDefaults: ...  # noqa: D102
    def chat_prompt(self, messages: Sequence[Message], **template_options: Any) -> Prompt: ...  # noqa: D102
    def infill_prompt(  # noqa: D102
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        *,
        add_special_tokens: bool = True,
    ) -> InfillPrompt: ...
    def reset_prefix_cache(self) -> int: ...  # noqa: D102
    def prepare(  # noqa: D102
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        kind: RequestOutputKind | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[Request]: ...
    def start(self, requests: Sequence[Request], *, interval: int = 1) -> OutputGroup: ...  # noqa: D102


@runtime_checkable
class EngineStatistics(Protocol):
    """Statistics of an engine in this process, for /metrics, the log and the queue's limits."""

    vllm_config: VllmConfig

    def load(self) -> EngineLoad: ...  # noqa: D102
    def stats(self) -> EngineStats: ...  # noqa: D102
