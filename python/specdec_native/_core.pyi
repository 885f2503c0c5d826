"""The compiled core. Token ids in, token ids out; text lives in the Python layer."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, overload, type_check_only

import numpy as np
import numpy.typing as npt

from specdec_native._core_options import (
    DrafterConfigOptions,
    EngineConfigOptions,
    SamplingParamsOptions,
    SpeculativeConfigOptions,
)

@type_check_only
class CustomDrafter(Protocol):
    def propose(self, tokens: list[int], max_tokens: int) -> list[list[int]]: ...

@type_check_only
class LogitsProcessor(Protocol):
    name: str
    def apply(
        self, prompt: list[int], output: list[int], logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]: ...

class Option:
    """A row of the tables in cpp/include/specdec."""

    name: str
    type: str  # as an annotation
    default: Any
    help: str
    details: str
    lowest: float | None
    highest: float | None
    above_lowest: bool  # lowest itself is not in the range
    zero: str | None  # what 0, in Python None, stands for
    choices: list[str]
    num_bits: int  # of an integer

class DrafterConfig(DrafterConfigOptions):
    """Fields are those of cpp/include/specdec/speculative_config.h."""

    custom: CustomDrafter | None
    suffix_corpus: list[list[int]]
    options: ClassVar[tuple[Option, ...]]
    def __init__(self, **fields: Any) -> None: ...

class SpeculativeConfig(SpeculativeConfigOptions):
    """Fields are those of cpp/include/specdec/speculative_config.h."""

    drafters: list[DrafterConfig]
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]]
    speculative_token_tree: list[list[int]]
    options: ClassVar[tuple[Option, ...]]
    def __init__(self, **fields: Any) -> None: ...
    def validate(self) -> None: ...

class EngineConfig(EngineConfigOptions):
    """Fields are those of cpp/include/specdec/config.h; every one may be given by keyword."""

    model: str
    hf_overrides: str
    tapped_layers: list[int]
    tap_final_hidden: bool
    speculative: SpeculativeConfig
    rank_group: RankGroup | None
    options: ClassVar[tuple[Option, ...]]
    def __init__(self, **fields: Any) -> None: ...

class ModelInfo:
    architecture: str
    dtype: str
    weight_format: str
    device: str
    isa: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int
    has_priorities: bool
    num_threads: int
    num_kv_blocks: int
    block_size: int
    num_parameters: int
    weight_bytes: int
    kv_cache_dtype: str
    kv_cache_bytes: int
    state_bytes: int

class GrammarMatcher:
    def mask(self) -> npt.NDArray[Any]: ...  # uint32; bit t % 32 of word t // 32: token t may come
    def advance(self, token: int) -> None: ...
    def clone(self) -> GrammarMatcher: ...
    def forced_tokens(self) -> list[int]: ...

class Grammar:
    vocab_size: int
    def make_matcher(self) -> GrammarMatcher: ...

class VocabularyTexts:
    def __init__(self, texts: Sequence[bytes]) -> None: ...

class BadWords:
    def __init__(self, texts: VocabularyTexts, words: Sequence[bytes]) -> None: ...

def without(words: BadWords, grammar: Grammar | None = None) -> Grammar: ...

class Reasoning:
    """The marks around a model's reasoning, in one vocabulary. See reasoning.h."""
    def __init__(
        self,
        *,
        texts: VocabularyTexts,
        begin: Sequence[str],
        end: Sequence[str],
        gap: str,
    ) -> None: ...

def after_reasoning(
    reasoning: Reasoning, *, has_begun: bool, budget: int = -1, answer: Grammar | None = None
) -> Grammar: ...

class LlGuidance:
    """Compiles grammars. See llguidance.h."""
    def __init__(
        self,
        *,
        library: str,
        vocab_size: int,
        tokenizer_json: str,
        end_token_ids: Sequence[int],
        tokenize: Callable[[str], list[int]],
    ) -> None: ...
    def compile(self, kind: str, text: str) -> Grammar: ...

class SamplingParams(SamplingParamsOptions):
    """The core's half of sampling parameters: token ids only. See sampling_params.h."""

    logits_processors: list[LogitsProcessor]
    grammar: Grammar | None
    options: ClassVar[tuple[Option, ...]]
    def __init__(self, **fields: Any) -> None: ...
    def validate(self, vocab_size: int = 0) -> None: ...

class Logprob:
    token_id: int
    logprob: float
    rank: int

class AcceptanceStats:
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_emitted_tokens: int
    num_predicted_draft_tokens: int
    num_predicted_accepted_tokens: int
    proposed_per_position: list[int]
    accepted_per_position: list[int]
    histogram: list[int]
    @property
    def mean_acceptance_length(self) -> float: ...
    @property
    def draft_acceptance_rate(self) -> float: ...

class DraftedToken:
    token_id: int
    parent: int
    drafter: str
    probability: float | None
    is_accepted: bool

class CompletionOutput:
    index: int
    new_token_ids: list[int]
    new_logprobs: list[list[Logprob]]
    finish_reason: str | None  # "stop", "length", "abort", "error"
    stop_token_id: int | None
    acceptance: AcceptanceStats | None  # so far; None without speculation
    draft_step: tuple[int, int] | None  # (verified, kept) in this step, where they are recorded
    draft_tree: list[DraftedToken]  # of this step; empty unless they are recorded
    tapped_states: npt.NDArray[Any] | None  # [tokens, taps, hidden size]; bfloat16 as uint16

class RequestMetrics:
    arrival_time: float
    first_scheduled_time: float
    first_token_time: float
    finished_time: float
    num_cached_tokens: int
    num_preemptions: int

class RequestOutput:
    request_id: str
    outputs: list[CompletionOutput]
    new_prompt_logprobs: list[list[Logprob]]
    finished: bool
    metrics: RequestMetrics
    error: str  # why its completions end with "error"; else empty

    def raise_engine_failure(self) -> None:
        """Raises EngineFailed or RankFailure where the error has ended the engine."""

class PreparedParams:
    """Parameters that were checked for an engine."""

    def __init__(self, engine: ModelInfo, params: SamplingParams) -> None: ...

class PreparedRequest:
    """A request that was checked for an engine."""

    def __init__(
        self,
        params: PreparedParams,
        prompt_token_ids: Sequence[int],
        *,
        cache_salt: str = "",
        priority: int = 0,
        resumed_token_ids: Sequence[int] = (),
        prompt_name: str = "prompt",
    ) -> None: ...
    def part(self, first: int, count: int) -> PreparedRequest: ...
    @staticmethod
    def refuse_length(prompt_name: str, amount: str, max_model_len: int) -> NoReturn: ...

class EngineLoop:
    """An engine that a native thread steps without the GIL. For any number of threads."""

    def __init__(self, config: EngineConfig) -> None: ...
    def add(
        self,
        requests: Sequence[tuple[int, PreparedRequest, object]],
        by_step: bool,
    ) -> list[RequestHandle]: ...
    def abort(self, id: int) -> None: ...
    def stop_completion(self, id: int, index: int) -> None: ...
    def ask_for_step(self) -> int: ...
    def take_outputs(self) -> tuple[list[tuple[Any, RequestOutput]], int] | None: ...
    def stats(self) -> dict[str, Any]: ...  # the arguments of EngineStats.from_core
    def reset_prefix_cache(self) -> int: ...
    def load(self) -> dict[str, Any]: ...  # the fields of EngineLoad
    def check_health(self) -> None: ...
    def is_loop_thread(self) -> bool: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def model_info(self) -> ModelInfo: ...

class RequestHandle:
    """Aborts its request when the last reference goes."""

    def abort(self) -> None: ...

class DeviceInfo:
    name: str
    model: str
    memory_bytes: int
    num_threads: int
    isa: str
    unusable: str

class BuildInfo:
    version: str
    compiler: str
    build_type: str
    has_cuda: bool
    cuda_note: str
    has_emulated_device: bool
    cpu_isas: list[str]

class Error(RuntimeError): ...
class InvalidArgument(Error, ValueError): ...
class CheckpointError(Error, ValueError): ...
class OutOfMemory(Error, MemoryError): ...
class Unavailable(Error): ...
class EngineFailed(Error): ...

class RankFailure(EngineFailed):
    rank: int
    operation: str

class InternalError(Error): ...

__version__: str

def synthetic_rates(length: float, num_speculative_tokens: int) -> list[float]: ...

class RankGroup:
    @overload
    def __init__(self, num_ranks: int) -> None: ...
    @overload
    def __init__(self, num_ranks: int, host: str, port: int) -> None: ...
    @property
    def name(self) -> str: ...
    def fail(self, rank: int, cause: str) -> None: ...

def is_leading_rank(config: EngineConfig) -> bool: ...
def serve_rank(config: EngineConfig, name: str = "", rank: int = 0) -> None: ...
def list_devices() -> list[DeviceInfo]: ...
def gpu_problem() -> str: ...
def build_info() -> BuildInfo: ...
def read_bandwidth(num_bytes: int, *, num_threads: int = 0, seconds: float = 0.2) -> float: ...
def known_architectures() -> list[str]: ...
def known_quantizations() -> list[str]: ...
def check_quantization(name: str) -> None: ...
def method_takes(method: str, option: str) -> bool: ...

class ModelFacts:
    """See cpp/include/specdec/model_facts.h."""

    architecture: str  # of the text model, as in known_architectures()
    dtype: str  # of config.json
    max_position_embeddings: int
    num_experts: int
    num_experts_per_token: int
    num_ranks: int
    hidden_size: int
    num_layers: int
    num_exchanges: int  # between ranks, in a pass
    def stage(self, index: int, num_stages: int) -> ModelFacts: ...
    def pass_bytes(self, num_rows: float, batch: float, context: float) -> float: ...
    def pass_flops(
        self, num_rows: float, context: float, num_scored: float | None = None
    ) -> float: ...
    def received_bytes(self, num_rows: float) -> float: ...
    def memory_bytes(self, num_tokens: float) -> float: ...

def model_facts(
    directory: str, *, dtype: str = "auto", quantization: str = "auto", kv_cache_dtype: str = "auto"
) -> list[ModelFacts]: ...
def head_facts(head: DrafterConfig, target_directory: str) -> list[ModelFacts]: ...
def scores_with_target(
    head: DrafterConfig, target_directory: str, *, random_weights: bool = False
) -> bool: ...
def load_eos_token_ids(directory: str) -> list[int]: ...
def set_log_sink(sink: Callable[[str, str], None] | None) -> None: ...
