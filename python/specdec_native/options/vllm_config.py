"""An engine's resolved options under vLLM's names: `vllm_config.model_config.max_model_len`."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints.hf_config import HfConfig, load_hf_config


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The model. `model` is its directory; `dtype` is a name such as "bfloat16"."""

    model: str
    max_model_len: int
    dtype: str
    seed: int
    hf_overrides: str
    info: _core.ModelInfo = dataclasses.field(repr=False)

    @functools.cached_property
    def hf_config(self) -> HfConfig:
        """config.json, with hf_overrides put over it."""
        overrides = json.loads(self.hf_overrides) if self.hf_overrides else None
        return load_hf_config(Path(self.model), overrides)

    @property
    def hf_text_config(self) -> HfConfig:
        """hf_config."""
        return self.hf_config

    def get_vocab_size(self) -> int:
        """Rows of the LM head."""
        return self.info.vocab_size

    def get_hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.info.hidden_size

    def get_head_size(self) -> int:
        """Width of an attention head."""
        return self.info.head_dim


@dataclasses.dataclass(frozen=True)
class CacheConfig:
    """The KV cache."""

    block_size: int
    num_gpu_blocks: int
    cache_dtype: str
    enable_prefix_caching: bool
    gpu_memory_utilization: float


@dataclasses.dataclass(frozen=True)
class SchedulerConfig:
    """How much runs in one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str = "fcfs"
    async_scheduling: bool = False


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """The ranks of the engine, `world_size` of them. A replica is a process of its own."""

    world_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    distributed_executor_backend: str
    data_parallel_size: int = 1
    data_parallel_rank: int = 0


class SpeculativeConfig(HfConfig):
    """The keys of speculative_config as given, and the longest draft as resolved."""

    def __getattr__(self, name: str) -> Any:
        """None for a key that was left out, as in vLLM."""
        return None if not name.startswith("__") and name not in self else super().__getattr__(name)


@dataclasses.dataclass(frozen=True)
class VllmConfig:
    """All resolved options. `speculative_config` is None where the engine does not speculate."""

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    speculative_config: SpeculativeConfig | None


def make_vllm_config(
    config: _core.EngineConfig,
    info: _core.ModelInfo,
    directory: Path,
    speculative_config: Mapping[str, Any] | None,
) -> VllmConfig:
    """The facts of an engine that was made of `config`."""
    speculative = None
    if speculative_config is not None:
        speculative = SpeculativeConfig(speculative_config)
        speculative["num_speculative_tokens"] = config.speculative.num_speculative_tokens
    return VllmConfig(
        model_config=ModelConfig(
            model=str(directory),
            max_model_len=info.max_model_len,
            dtype=info.dtype,
            seed=config.seed,
            hf_overrides=config.hf_overrides,
            info=info,
        ),
        cache_config=CacheConfig(
            block_size=info.block_size,
            num_gpu_blocks=info.num_kv_blocks,
            cache_dtype=info.kv_cache_dtype,
            enable_prefix_caching=config.enable_prefix_caching,
            gpu_memory_utilization=config.gpu_memory_utilization,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
            max_model_len=info.max_model_len,
            policy=config.scheduling_policy,
        ),
        parallel_config=ParallelConfig(
            world_size=config.tensor_parallel_size * config.pipeline_parallel_size,
            tensor_parallel_size=config.tensor_parallel_size,
            pipeline_parallel_size=config.pipeline_parallel_size,
            distributed_executor_backend=config.distributed_executor_backend,
        ),
        speculative_config=speculative,
    )
