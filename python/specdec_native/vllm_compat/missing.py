"""Names of vLLM's that are not here, and what to do without them."""

from __future__ import annotations

_POOLING = "only text generation is supported; use sentence-transformers or transformers"
_STEPS = "use llm.llm_engine.add_request() and step(), or generate() in a thread"
_ONE_PROCESS = "the engine runs in this process"

# Names one would import.
MISSING_NAMES = {
    "ClassificationOutput": _POOLING,
    "ClassificationRequestOutput": _POOLING,
    "EmbeddingOutput": _POOLING,
    "EmbeddingRequestOutput": _POOLING,
    "EmbedsPrompt": "prompt embeddings are not supported; give text or token ids",
    "LoRARequest": "merge the adapter into the checkpoint",
    "ModelRegistry": "models cannot be registered; the README lists the families",
    "PoolingOutput": _POOLING,
    "PoolingParams": _POOLING,
    "PoolingRequestOutput": _POOLING,
    "ScoringOutput": _POOLING,
    "ScoringRequestOutput": _POOLING,
    "initialize_ray_cluster": _ONE_PROCESS,
}

# Methods of LLM.
MISSING_METHODS = {
    "apply_model": "there is no torch module behind it",
    "classify": _POOLING,
    "collective_rpc": _ONE_PROCESS,
    "embed": _POOLING,
    "enqueue": _STEPS,
    "enqueue_chat": _STEPS,
    "encode": f"{_POOLING}; get_tokenizer().encode() gives token ids",
    "release_kv_cache_memory": "close the engine, llm.llm_engine.close(), and make another",
    "reward": _POOLING,
    "score": _POOLING,
    "sleep": "close the engine, llm.llm_engine.close(), and make another",
    "wait_for_completion": _STEPS,
    "wake_up": "close the engine, llm.llm_engine.close(), and make another",
}
