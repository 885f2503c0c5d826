"""Names of vLLM's that are not here, or stand for nothing here, and what to do without them."""

from __future__ import annotations

from typing import Any, NoReturn

_POOLING = "only text generation is supported; use sentence-transformers or transformers"
_STEPS = "use llm.llm_engine.add_request() and step(), or generate() in a thread"
_ONE_PROCESS = "the engine runs in this process"
_ONE_CACHE = "the cache stays in this process"
_NO_ADAPTERS = "merge the adapter into the checkpoint"
_COUNTS = "get_metrics() and stats() of the engine have the counts"
_ONLY_TEXT = "only text is supported"
_LATER = "close the engine, llm.llm_engine.close(), and make another"

# Names that can be imported, for scripts that have them in a type, a branch or an isinstance(); to
# make one or to call it is refused.
REFUSED_NAMES = {
    "AggregatedLoggingStatLogger": _COUNTS,
    "ClassificationOutput": _POOLING,
    "ClassificationRequestOutput": _POOLING,
    "ECTransferConfig": _ONLY_TEXT,
    "EmbeddingOutput": _POOLING,
    "EmbeddingRequestOutput": _POOLING,
    "EmbedsPrompt": "prompt embeddings are not supported; give text or token ids",
    "ImageAsset": _ONLY_TEXT,
    "KVEventsConfig": _ONE_CACHE,
    "KVTransferConfig": _ONE_CACHE,
    "LoRAConfig": _NO_ADAPTERS,
    "LoRARequest": _NO_ADAPTERS,
    "LoggingStatLogger": _COUNTS,
    "MultiModalDataDict": _ONLY_TEXT,
    "PoolerConfig": _POOLING,
    "PoolingOutput": _POOLING,
    "PoolingParams": _POOLING,
    "PoolingRequestOutput": _POOLING,
    "PrometheusStatLogger": _COUNTS,
    "PromptAdapterRequest": "give text or token ids",
    "ScoringOutput": _POOLING,
    "ScoringRequestOutput": _POOLING,
    "ShardedStateLoader": "a checkpoint is split as it is loaded; copy its directory",
    "StatLoggerBase": _COUNTS,
    "VideoAsset": _ONLY_TEXT,
    "WeightTransferConfig": "make a new engine for other weights",
    "Worker": "there are no worker processes",
}
# Names that are used as soon as they are imported, so that importing them is refused.
MISSING_NAMES = {
    "ModelRegistry": "models cannot be registered; the README lists the families",
    "initialize_ray_cluster": _ONE_PROCESS,
}
# Configurations that are dicts here, of which LLM takes what it knows.
CONFIG_NAMES = (
    *("AttentionConfig", "CompilationConfig", "DeviceConfig", "EPLBConfig", "KernelConfig"),
    *("LoadConfig", "MultiModalConfig", "ObservabilityConfig", "OffloadConfig", "PassConfig"),
    *("ProfilerConfig", "StructuredOutputsConfig"),
)
# Enumerations of which every member is its own name here: they say how vLLM tunes itself.
ENUM_NAMES = ("CompilationLevel", "CompilationMode", "CUDAGraphMode", "UsageContext")

# Methods of vLLM's engines.
MISSING_METHODS = {
    "apply_model": "there is no torch module behind it",
    "classify": _POOLING,
    "collective_rpc": _ONE_PROCESS,
    "embed": _POOLING,
    "enqueue": _STEPS,
    "enqueue_chat": _STEPS,
    "encode": f"{_POOLING}; get_tokenizer().encode() gives token ids",
    "release_kv_cache_memory": _LATER,
    "reward": _POOLING,
    "score": _POOLING,
    "wait_for_completion": _STEPS,
}


class _Refused(type):
    """The type of REFUSED_NAMES: classes that cannot be called, nor those derived of them."""

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        name = next(c.__name__ for c in reversed(cls.__mro__) if c.__name__ in REFUSED_NAMES)
        raise ValueError(f"{name} is not supported by specdec_native: {REFUSED_NAMES[name]}")


class _Config(dict[str, Any]):
    """A dict whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} was not given {name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class _Enum(type):
    """The type of ENUM_NAMES."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


def stand_in(name: str) -> type | None:
    """What is imported for one of vLLM's names in these tables; None for others."""
    home = {"__module__": "specdec_native"}
    if name in REFUSED_NAMES:
        return _Refused(name, (), home)
    if name in CONFIG_NAMES:
        return type(name, (_Config,), home)
    if name in ENUM_NAMES:
        return _Enum(name, (), home)
    return None


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for what an engine of vLLM's has and `owner` has not."""
    if name in MISSING_METHODS:
        return AttributeError(f"{owner}.{name} is not supported: {MISSING_METHODS[name]}")
    return AttributeError(f"{owner!r} object has no attribute {name!r}")
