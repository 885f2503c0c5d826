"""Drafters that users write."""

from __future__ import annotations

import importlib
import itertools
import operator
from collections.abc import Callable
from typing import Any

from specdec_native.common.checks import INT32_MAX, check_integer, shown
from specdec_native.options.vllm_config import VllmConfig
from specdec_native.speculation.vllm_proposer import VllmProposer, is_vllm_proposer


class CustomDrafter:
    """The core's view of a user's drafter, in any of the accepted forms."""

    def __init__(self, drafter: Any) -> None:
        propose = drafter if isinstance(drafter, type) else getattr(drafter, "propose", drafter)
        if isinstance(drafter, type) or not callable(propose):
            raise ValueError(
                "drafter must be an object with propose(tokens, max_tokens) or a function, got "
                f"{drafter!r:.80}" + ("; make an object of it" if callable(propose) else "")
            )
        self._drafter = drafter
        self._propose = propose
        self._on_interrupt: Callable[[BaseException], None] | None = None

    def start(self, vllm_config: VllmConfig, on_interrupt: Callable[[BaseException], None]) -> None:
        """Called once the engine's sizes are known."""
        self._on_interrupt = on_interrupt
        if isinstance(self._drafter, VllmProposer):
            self._drafter.start(vllm_config)

    def propose(self, tokens: list[int], max_tokens: int) -> list[list[int]]:
        """Continuations of `tokens`, each cut to max_tokens. Raises what the drafter raises.

        KeyboardInterrupt and SystemExit do not fail the request: a thread that waits for the engine
        raises them, and this step drafts nothing.
        """
        try:
            drafts = self._propose(tokens, max_tokens)
        except (KeyboardInterrupt, SystemExit) as interrupt:
            if self._on_interrupt is None:
                raise
            self._on_interrupt(interrupt)
            return []
        try:
            continuations = [draft[:max_tokens] for draft in _continuations(drafts) if draft]
        except TypeError:
            raise ValueError(
                "a custom drafter must return a list of token ids or a list of such lists, got "
                f"{shown(drafts)}"
            ) from None
        for token in itertools.chain.from_iterable(continuations):
            # The core knows the vocabulary's size.
            check_integer("a custom drafter's token", token, minimum=-INT32_MAX, maximum=INT32_MAX)
        return continuations


def make_drafter(path: str) -> Any:
    """The drafter at a dotted path: a class is made without arguments, or is vLLM's.

    Raises ValueError.
    """
    module_name, _, name = path.rpartition(".")
    try:
        value = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f'the custom drafter "{path}" cannot be imported ({error}); give '
            '"package.module.Class" of an installed module'
        ) from error
    if is_vllm_proposer(value):
        return VllmProposer(value)
    return value() if isinstance(value, type) else value


def _continuations(drafts: Any) -> list[list[int]]:
    if drafts is None:
        return []
    entries = list(drafts)
    try:
        return [[operator.index(token) for token in entries]]
    except TypeError:
        return [[operator.index(token) for token in entry] for entry in entries]
