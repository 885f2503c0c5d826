"""Hugging Face transformers, eager, as `generate` comes."""

from __future__ import annotations

import time
from typing import Any

from ..protocol import Backend, Generation, Setup
from .base import DRAFT_TOKENS, Peer, pip_install

_LOOKUP_TOKENS = 10

PEER = Peer(
    name="transformers",
    module="transformers",
    package="transformers",
    speculations={"plain": 1024, "prompt-lookup": 1, "draft": 1},
    precisions=("bf16",),
    install=pip_install("torch==2.13.0 transformers==5.23.0 accelerate"),
)


class _Transformers:
    def __init__(self) -> None:
        self._model: Any = None
        self._speculates = False
        self._options: dict[str, Any] = {}
        self._lookup: dict[str, int] = {}
        self._num_forwards = 0
        self._first_forward_end = 0.0

    def load(self, setup: Setup) -> str:
        import torch
        import transformers

        torch.set_num_threads(setup.num_threads)
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        self._model = load(setup.model, dtype=torch.bfloat16).eval()
        self._model.register_forward_hook(self._on_forward)
        self._speculates = setup.speculation != "plain"
        if setup.speculation == "draft":
            draft = load(setup.draft_model, dtype=torch.bfloat16).eval()
            draft.generation_config.num_assistant_tokens = DRAFT_TOKENS
            self._options = {"assistant_model": draft}
        elif setup.speculation == "prompt-lookup":
            self._lookup = {"prompt_lookup_num_tokens": _LOOKUP_TOKENS}
        return str(transformers.__version__)

    def _on_forward(self, *_: Any) -> None:
        self._num_forwards += 1
        if self._num_forwards == 1:
            self._first_forward_end = time.perf_counter()

    def reset(self, batch: int) -> None:
        del batch  # nothing outlives a call

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        import torch
        import transformers

        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        make_config: Any = transformers.GenerationConfig
        config = make_config(
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            pad_token_id=0,
            eos_token_id=None,
            **self._lookup,
        )
        self._num_forwards = 0
        start = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=mask, generation_config=config, **self._options
            )
        seconds = time.perf_counter() - start
        num_forwards = self._num_forwards
        return Generation(
            token_ids=output[:, longest:].tolist(),
            seconds=seconds,
            first_token_seconds=[self._first_forward_end - start] * len(prompts),
            num_accepted=max_tokens - num_forwards if self._speculates else None,
        )

    def close(self) -> None:
        """Nothing was started."""


def make_backend() -> Backend:
    """The backend that the worker serves."""
    return _Transformers()
