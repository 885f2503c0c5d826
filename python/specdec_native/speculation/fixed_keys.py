"""Keys of vLLM's speculative_config that change nothing here, or that are refused."""

from __future__ import annotations

from typing import Any

_BOOL = (False, True)
_ONE_DEVICE = "drafting runs on the engine's device"
NO_FLY = 'lossy verification is not supported: use rejection_sample_method "exact" or "standard"'
# vLLM's keys, with the values (beside None) that are this engine's behaviour anyway, and the advice
# for any other value.
FIXED_KEYS: dict[str, tuple[tuple[Any, ...], str]] = {
    "acceptance_method": (("rejection_sampler",), 'give "rejection_sample_method" instead'),
    "attention_backend": (("auto",), "the drafter uses the engine's attention"),
    "code_revision": ((), "code of a checkpoint is not run"),
    "disable_by_batch_size": (
        (),
        'give "num_speculative_tokens_per_batch_size": [[1, N - 1, K], [N, N, 0]] instead',
    ),
    "disable_eagle_block_drop": (_BOOL, ""),
    "disable_log_stats": (_BOOL, ""),
    "disable_logprobs": (_BOOL, ""),
    "disable_lookahead_block_hashes": (_BOOL, ""),
    "disable_mqa_scorer": (_BOOL, ""),
    "disable_padded_drafter_batch": (_BOOL, ""),
    "draft_lm_head_quantization": (
        (),
        "give \"quantization\" for the head's own matrices; rows of the target's LM head that "
        '"speculative_token_map" copies are held in it, too',
    ),
    "draft_load_config": ((), "give the draft model as a checkpoint directory or GGUF file"),
    "dspark_draft_topk": ((), "drafts are drawn as the request's own sampling parameters say"),
    "enable_adaptive_verification": (
        (False,),
        'give "draft_length_policy": "auto" instead',
    ),
    "enforce_eager": (_BOOL, ""),
    "fly_entropy_threshold": ((), NO_FLY),
    "fly_entropy_top_k": ((), NO_FLY),
    "fly_window_size": ((), NO_FLY),
    "index_share_for_mtp_iteration": ((), "sparse attention with an index is not available"),
    "kv_cache_dtype": (("auto",), "the draft model's cache has the engine's dtype"),
    "moe_backend": (("auto",), "the drafter uses the engine's kernels"),
    "posterior_alpha": ((), NO_FLY),
    "posterior_threshold": ((), NO_FLY),
    "tensor_parallel_size": ((), 'give "draft_tensor_parallel_size" instead'),
    "use_heterogeneous_vocab": ((False,), "give a draft model with the target's vocabulary"),
    "use_local_argmax_reduction": (_BOOL, ""),
    "xpress_topc": ((), "DFlash2's choice among candidates is not available"),
}
