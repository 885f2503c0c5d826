"""The engine of an ingress: handles text and checks here, and generates on replicas."""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.options.vllm_config import VllmConfig
from specdec_native.requests.builder_methods import BuilderMethods
from specdec_native.requests.inputs import Prompt
from specdec_native.requests.request import Request
from specdec_native.requests.request_builder import (
    CheckpointText,
    GenerationConfig,
    RequestBuilder,
    load_text,
)
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.speculation.target_of_head import find_target
from specdec_serve.replicas.failover import FailoverGroup, NoReplica, Runner, Work, WorkItem

_SEED_BITS = 63


class RemoteEngine(BuilderMethods):
    """A ServedEngine without a model.

    It reads the checkpoint's tokenizer, chat template and generation_config.json, so these files
    must also be where the ingress runs.
    """

    def __init__(
        self,
        model: str,
        options: Mapping[str, Any],
        vllm_config: VllmConfig,
        run: Runner,
        *,
        num_replays: int,
        on_replay: Callable[[], None] = lambda: None,
        count_replicas: Callable[[], int] = lambda: 1,
        reset_caches: Callable[[], int] = lambda: 0,
    ) -> None:
        """`options` and `vllm_config` describe the replicas' engines.

        `count_replicas` returns how many replicas can answer. `reset_caches` drops the prefix cache
        of each and returns the number of blocks; it may block. For the rest see FailoverGroup.
        """
        self.vllm_config = vllm_config
        self._info = vllm_config.model_config.info
        self._run = run
        self._num_replays = num_replays
        self._on_replay = on_replay
        self._count_replicas = count_replicas
        self._reset_caches = reset_caches
        self._names = itertools.count()
        target = find_target(
            model, options.get("revision"), options.get("speculative_config"), hub.find_config
        )
        drafts = target.speculative_config or {}
        self._repeats = drafts.get("rejection_sample_method", "exact") == "exact"
        resolve = functools.partial(
            hub.resolve_model, quantization=options.get("quantization", "auto"), weights=False
        )
        self.model_directory: Path = target.resolve(resolve)
        text = CheckpointText(None, "skip_tokenizer_init is set")
        if not options.get("skip_tokenizer_init", False):
            text = load_text(
                self.model_directory,
                options.get("tokenizer"),
                options.get("chat_template"),
                bool(options.get("trust_remote_code", False)),
            )
        self._builder = RequestBuilder(
            self.model_directory,
            text,
            self._info,
            generation=GenerationConfig(
                options.get("generation_config", "auto"), options.get("override_generation_config")
            ),
            max_logprobs=options.get("max_logprobs", 20),
        )

    def model_info(self) -> _core.ModelInfo:
        """The resolved options of the replicas' engines."""
        return self._info

    def check_health(self) -> None:
        """Raises NoReplica if no replica can answer; this may pass, as lost ones are replaced."""
        if self._count_replicas() == 0:
            raise NoReplica

    def reset_prefix_cache(self) -> int:
        """Drops the cached beginnings of prompts on all replicas; returns how many blocks."""
        return self._reset_caches()

    def prepare(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        kind: RequestOutputKind | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[Request]:
        """Tokenizes and checks prompts and parameters. Raises ValueError for the first bad one."""
        ids = [str(next(self._names)) for _ in prompts]
        return self._builder.build(prompts, sampling_params, ids, kind=kind, priority=priority)

    def start(self, requests: Sequence[Request], *, interval: int = 1) -> FailoverGroup:
        """Starts requests of prepare() on a replica."""
        prompts = [(request.prompt, list(request.prompt_token_ids)) for request in requests]
        work = Work(items_of(requests), interval, self._repeats)
        return FailoverGroup(work, prompts, self._run, self._num_replays, self._on_replay)


def items_of(requests: Sequence[Request]) -> list[WorkItem]:
    """The requests as work items. Requests without a seed get one, so that they are repeatable."""
    items = []
    for request in requests:
        params = request.params
        if params.seed is None:
            params = params.clone()
            params.seed = secrets.randbits(_SEED_BITS)
        items.append(
            WorkItem(list(request.prompt_token_ids), params, request.cache_salt, request.priority)
        )
    return items
