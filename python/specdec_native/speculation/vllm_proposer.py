"""Drafters written to vLLM's `custom_class` interface."""

from __future__ import annotations

import inspect
from typing import Any

from specdec_native.options.vllm_config import VllmConfig


class VllmProposer:
    """Asks a vLLM proposer for the draft of one request, as a batch of one.

    Its propose() gets the last token as the sampled token, the number of tokens, and an array of
    max_model_len tokens that begins with the request's; slot_mappings is None. As in vLLM, the rest
    of the array may hold another request's tokens.
    """

    def __init__(self, proposer_class: type) -> None:
        self._class = proposer_class
        self._proposer: Any = None
        self._row: Any = None
        self._count: Any = None

    def start(self, vllm_config: VllmConfig) -> None:
        """Makes the proposer, once the engine's sizes are known."""
        import numpy as np  # noqa: PLC0415 - 20 MB that other drafters do without

        self._count = np.zeros(1, dtype=np.int32)
        self._row = np.zeros((1, vllm_config.model_config.max_model_len), dtype=np.int32)
        self._proposer = self._class(vllm_config)

    def propose(self, tokens: list[int], max_tokens: int) -> list[list[int]]:
        """The draft, cut to max_tokens. Raises what the proposer raises."""
        self._row[0, : len(tokens)] = tokens
        self._count[0] = len(tokens)
        drafts = self._proposer.propose([tokens[-1:]], self._count, self._row, slot_mappings=None)
        if len(drafts) != 1:
            raise ValueError(
                f"propose() of {self._class.__name__} must return a list of tokens for each of the "
                f"requests it was given, 1; got {drafts!r:.80}"
            )
        draft = [int(token) for token in drafts[0]]
        return [draft[:max_tokens]]


def is_vllm_proposer(value: Any) -> bool:
    """Whether a class is written for vLLM.

    vLLM's classes are constructed with the configuration and have propose(sampled_token_ids,
    num_tokens_no_spec, token_ids_cpu, slot_mappings); ours are constructed without arguments and
    have propose(tokens, max_tokens).
    """
    propose = getattr(value, "propose", None)
    if not (isinstance(value, type) and callable(propose)):
        return False
    is_ours = _takes(value, 0) and _takes(propose, 3)  # self among them
    return _takes(value, 1) and (_takes(propose, 4) or _takes(propose, 5)) and not is_ours


def _takes(function: Any, num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * num_arguments)
    except (TypeError, ValueError):  # ValueError: built in, no signature
        return False
    return True
