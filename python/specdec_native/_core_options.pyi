"""Options of the core's classes. Written by scripts/write_options.py; do not edit."""

class DrafterConfigOptions:
    # "ngram", "suffix", "replay", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator",
    # "mtp", "dflash", "dspark", "custom_class"
    method: str
    prompt_lookup_min: int
    prompt_lookup_max: int
    suffix_decoding_max_tree_depth: int
    suffix_decoding_max_cached_requests: int
    suffix_decoding_max_spec_factor: float
    suffix_decoding_min_token_prob: float
    suffix_store: str
    record: str
    replay: str
    store_tokenizer: str
    model: str
    quantization: str
    max_model_len: int
    draft_sample_method: str  # "greedy", "probabilistic"
    min_confidence: float
    parallel_drafting: bool
    speculative_token_map: list[int]
    draft_tensor_parallel_size: int

class SpeculativeConfigOptions:
    num_speculative_tokens: int
    draft_length_policy: str  # "auto", "fixed"
    merge_drafters: bool
    tree_width: int
    max_draft_nodes: int
    rejection_sample_method: str  # "exact", "standard", "block", "synthetic"
    synthetic_acceptance_rates: list[float]
    synthetic_acceptance_length: float

class EngineConfigOptions:
    dtype: str  # "auto", "bfloat16", "float16", "float32"
    load_format: str  # "auto", "dummy"
    quantization: str
    device: str
    cpu_isa: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    scheduling_policy: str  # "fcfs", "priority"
    kv_cache_dtype: str  # "auto", "int8"
    kv_cache_memory_bytes: int
    num_kv_blocks: int
    gpu_memory_utilization: float
    block_size: int
    enable_prefix_caching: bool
    enforce_eager: bool
    deterministic: bool
    num_threads: int
    seed: int
    logprobs_mode: str  # "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
    tensor_parallel_size: int
    pipeline_parallel_size: int
    distributed_executor_backend: str  # "threads", "mp", "ray", "external_launcher"
    distributed_timeout_seconds: float

class SamplingParamsOptions:
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: list[tuple[int, float]]
    allowed_token_ids: list[int]
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    eos_token_ids: list[int]
    ignore_eos: bool
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    num_speculative_tokens: int | None
    prediction: list[int]
    record_draft_steps: bool
    record_draft_trees: bool
