"""Grammars of answers that begin with the model's reasoning."""

from __future__ import annotations

import functools
from collections.abc import Callable

from specdec_native import _core
from specdec_native.requests.inputs import Prompt
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.reasoning import ReasoningFormat, ReasoningStart, reasoning_format_of
from specdec_native.text.tokenizer import Tokenizer

_NUM_READ = 64  # last tokens of a prompt without text that are read


class ReasoningGrammars:
    """Puts reasoning before grammars, for one tokenizer. Any thread may call it."""

    def __init__(
        self, tokenizer: Tokenizer, texts: Callable[[frozenset[int]], _core.VocabularyTexts]
    ) -> None:
        """`texts` are those of the tokens without some of them."""
        self._tokenizer = tokenizer
        self._texts = texts
        self._marks = functools.cache(self._load)

    def start(self, params: SamplingParams, prompt: Prompt) -> ReasoningStart:
        """Where the answer to a prompt begins. Raises ValueError for an unknown format."""
        text = prompt.text
        if text is None:
            text = self._tokenizer.decode((prompt.token_ids or [])[-_NUM_READ:])
        return self._format(params).start_after(text, is_continued=prompt.is_continued)

    def before(self, answer: _core.Grammar | None, params: SamplingParams) -> _core.Grammar | None:
        """The grammar of reasoning and answer; None for any text.

        Raises ValueError where the model's reasoning cannot be cut.
        """
        form, budget = self._format(params), params.thinking_token_budget
        if budget is not None and not form.can_be_cut:
            raise ValueError(
                "thinking_token_budget: this model thinks in messages of their own, which cannot "
                "be cut; ask for less reasoning by reasoning_effort"
            )
        if params.reasoning_start is ReasoningStart.OVER or (answer is None and budget is None):
            return answer
        return _core.after_reasoning(
            self._marks(form),
            has_begun=params.reasoning_start is ReasoningStart.BEGUN,
            budget=-1 if budget is None else budget,
            answer=answer,
        )

    def _format(self, params: SamplingParams) -> ReasoningFormat:
        form = params.reasoning or reasoning_format_of(self._tokenizer.chat_template)
        if form is None:
            raise ValueError(
                "thinking_token_budget needs a model whose chat template shows how the model marks "
                "its reasoning, such as <think>; leave it out"
            )
        return form

    def _load(self, form: ReasoningFormat) -> _core.Reasoning:
        return _core.Reasoning(
            texts=self._texts(frozenset()), begin=form.begin, end=form.end, gap=form.gap
        )
