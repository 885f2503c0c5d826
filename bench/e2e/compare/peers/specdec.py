"""This engine."""

from __future__ import annotations

import time
from typing import Any

from ..protocol import STORED, Backend, Generation, Setup
from .base import HEADS, ISAS, Peer, head_method

_BLOCK_SIZE = 16
_MAX_BATCH = 1024
_NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
# Without a cache across requests: a repeated prompt would be answered from it.
_SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}

_QUANTIZATION = {"bf16": "none", "int8": "int8", "int4": "int4", STORED: "auto"}

PEER = Peer(
    name="specdec",
    module="specdec",
    package="specdec_native",
    speculations={
        "plain": _MAX_BATCH,
        "ngram": _MAX_BATCH,
        "suffix": _MAX_BATCH,
        "draft": _MAX_BATCH,
        "suffix+draft": _MAX_BATCH,
        **dict.fromkeys(HEADS, _MAX_BATCH),
        **dict.fromkeys((f"suffix+{method}" for method in HEADS), _MAX_BATCH),
    },
    precisions=tuple(_QUANTIZATION),
    install=("pip install '.[all]'",),
    isas={isa: {} for isa in ISAS},  # by Engine's cpu_isa
)


def speculative_config(speculation: str, draft_model: str, head: str = "") -> dict[str, Any] | None:
    """The engine's argument for a way of decoding, at its default draft lengths."""
    method = head_method(speculation)
    if method is not None:
        drafter = {"method": method, "model": head}
        if speculation == method:
            return drafter
        return {"drafters": [_SUFFIX, drafter], "merge_drafters": True}
    draft = {"method": "draft_model", "model": draft_model}
    configs: dict[str, dict[str, Any] | None] = {
        "plain": None,
        "ngram": _NGRAM,
        "suffix": _SUFFIX,
        "draft": draft,
        "suffix+draft": {"drafters": [_SUFFIX, draft]},
    }
    return configs[speculation]


class _Specdec:
    def __init__(self) -> None:
        self._engine: Any = None

    def load(self, setup: Setup) -> str:
        import specdec_native

        blocks = -(-setup.max_model_len // _BLOCK_SIZE)
        self._engine = specdec_native.Engine(
            setup.model,
            dtype="bfloat16",
            quantization=_QUANTIZATION[setup.precision],
            cpu_isa=setup.isa,
            num_threads=setup.num_threads,
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.max_batch,
            block_size=_BLOCK_SIZE,
            num_kv_blocks=setup.max_batch * blocks + 1,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            speculative_config=speculative_config(setup.speculation, setup.draft_model, setup.head),
        )
        return specdec_native.__version__

    def reset(self, batch: int) -> None:
        del batch  # nothing outlives a request here

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        from specdec_native import SamplingParams

        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        outputs = self._engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        stats = [output.metrics.speculative_decoding for output in outputs]
        accepted = [s.num_accepted_draft_tokens for s in stats if s is not None]
        return Generation(
            token_ids=[list(output.outputs[0].token_ids) for output in outputs],
            seconds=seconds,
            first_token_seconds=[output.metrics.first_token_latency for output in outputs],
            num_accepted=sum(accepted) if accepted else None,
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def make_backend() -> Backend:
    """The backend that the worker serves."""
    return _Specdec()
