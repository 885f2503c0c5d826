"""One running completion of a request: what the core reported, and how much was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_native import _core
from specdec_native.requests.logprobs import FlatLogprobs, Logprob, PromptLogprobs, SampleLogprobs
from specdec_native.requests.outputs import AcceptanceCounts, CompletionOutput, DraftStep, DraftTree
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.detokenizer import Detokenizer, TextStream
from specdec_native.text.stop_strings import StopStrings
from specdec_native.text.token_texts import TokenTexts

if TYPE_CHECKING:
    import numpy.typing as npt

    from specdec_native.text.tokenizer import Tokenizer


class Shown(NamedTuple):
    """How much of a completion its consumer has seen."""

    num_tokens: int = 0
    num_chars: int = 0
    end: bool = False


class Completion:
    """Tokens, text and logprobs of one of a request's completions; the request locks it."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        prompt_token_ids: Sequence[int],
        *,
        stop: StopStrings,
        num_spec_tokens: int | None,
    ) -> None:
        self.index = index
        self.acceptance: _core.AcceptanceStats | None = None
        self._tapped_states: npt.NDArray[Any] | None = None
        self._num_spec_tokens = num_spec_tokens
        self._draft_steps: list[DraftStep] | None = [] if params.record_draft_steps else None
        self._draft_trees: list[DraftTree] | None = [] if params.record_draft_trees else None
        self.token_ids: list[int] = []
        self.num_outputs = 0  # those with tokens
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        self._texts: TokenTexts | None = None  # for logprobs
        if tokenizer is not None:
            self._detokenizer = _make_detokenizer(params, tokenizer, prompt_token_ids, stop)
            if params.logprobs is not None:
                self._texts = TokenTexts(tokenizer, prompt_token_ids)
        self._logprobs: SampleLogprobs | None = None
        if params.logprobs is not None:
            self._logprobs = FlatLogprobs() if params.flat_logprobs else []
        self._cumulative_logprob = None if params.logprobs is None else 0.0

    def resume(self, token_ids: Sequence[int]) -> None:
        """Starts after tokens that were generated elsewhere; their logprobs are not here."""
        self.token_ids.extend(token_ids)
        if self._detokenizer is not None:
            self._detokenizer.extend(token_ids)
        for token_id in token_ids:
            if self._texts is not None:
                self._texts.push(token_id)
            if self._logprobs is not None:
                self._logprobs.append({})

    def apply(self, part: _core.CompletionOutput) -> None:
        """Adds what a step reported about this completion."""
        if part.acceptance is not None:
            self.acceptance = part.acceptance
        self._tapped_states = part.tapped_states
        if self._draft_steps is not None and (step := part.draft_step) is not None:
            self._draft_steps.append(step)
        if self._draft_trees is not None and (tree := part.draft_tree):
            self._draft_trees.append(DraftTree.of(len(self.token_ids), tree))
        new_ids = part.new_token_ids
        num_kept = len(new_ids)
        self.num_outputs += num_kept > 0
        stop_string = None
        if self._detokenizer is not None:
            num_kept = self._detokenizer.extend(
                new_ids, stop_token_last=part.finish_reason == "stop"
            )
            stop_string = self._detokenizer.stop_string
        for i in range(num_kept):
            if self._logprobs is not None and self._cumulative_logprob is not None:
                entries = part.new_logprobs[i]
                append_logprobs(self._logprobs, entries, self._texts_of(entries))
                self._cumulative_logprob += entries[0].logprob
            self.token_ids.append(new_ids[i])
        if stop_string is not None:
            self.finish("stop", stop_string)
        elif part.finish_reason is not None:
            self.finish(part.finish_reason, part.stop_token_id)

    def _texts_of(self, entries: Sequence[_core.Logprob]) -> list[str | None]:
        """The texts of the next position's tokens. The first token is the one that was chosen."""
        lengths = None if self._detokenizer is None else self._detokenizer.lengths
        if self._texts is None or lengths is None:
            return [None] * len(entries)
        texts = self._texts.texts(entry.token_id for entry in entries)
        self._texts.push(entries[0].token_id)
        bare = texts[0].lstrip(" ")
        if lengths[len(self.token_ids)] == len(bare) < len(texts[0]) and "\ufffd" not in bare:
            texts[0] = bare  # a decoder strips the space that a text begins with
        return [*texts]

    def finish(self, reason: str, stop_reason: int | str | None) -> None:
        """Ends the completion; text that was held back becomes final."""
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if self._detokenizer is not None:
            self._detokenizer.finish()

    def recorded_steps(self) -> list[DraftStep] | None:
        """What its steps drafted; None before the end, or if nothing was to be recorded."""
        return None if self.finish_reason is None else self._draft_steps

    def has_news(self, shown: Shown, interval: int) -> bool:
        """Whether there are `interval` tokens to show, or the first token, or the end."""
        if self.finish_reason is not None:
            return not shown.end
        num_new = len(self.token_ids) - shown.num_tokens
        return num_new >= interval or (num_new > 0 and shown.num_tokens == 0)

    def show(self) -> Shown:
        """The `Shown` of a consumer that has seen all final text and tokens."""
        num_chars = 0 if self._detokenizer is None else self._detokenizer.num_certain_chars()
        return Shown(len(self.token_ids), num_chars, self.finish_reason is not None)

    def output(self, shown: Shown, now: Shown) -> CompletionOutput:
        """The output between `shown` and `now`, which is show()."""
        text = ""
        if self._detokenizer is not None:
            text = self._detokenizer.text[shown.num_chars : now.num_chars]
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[shown.num_tokens : now.num_tokens],
            cumulative_logprob=self._cumulative_logprob,
            logprobs=None if self._logprobs is None else self._logprobs[shown.num_tokens :],
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            acceptance=AcceptanceCounts.of(
                [self.acceptance], self._num_spec_tokens, self.recorded_steps()
            ),
            tapped_states=self._tapped_states,
            draft_trees=self._trees_between(shown.num_tokens, now.num_tokens),
            text_lengths=self._lengths_between(shown.num_tokens, now.num_tokens),
        )

    def _trees_between(self, begin: int, end: int) -> list[DraftTree] | None:
        """The draft trees of steps whose first token is among the tokens [begin, end)."""
        if self._draft_trees is None:
            return None
        return [tree for tree in self._draft_trees if begin <= tree.num_tokens < end]

    def _lengths_between(self, begin: int, end: int) -> list[int] | None:
        """How many characters the tokens [begin, end) added."""
        lengths = None if self._detokenizer is None else self._detokenizer.lengths
        return None if lengths is None else lengths[begin:end]


def _make_detokenizer(
    params: SamplingParams,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
    stop: StopStrings,
) -> Detokenizer:
    keep_unspaced = not (params.skip_special_tokens or params.spaces_between_special_tokens)
    stream = TextStream(
        tokenizer,
        hidden=tokenizer.hidden_tokens(params.skip_special_tokens, params.shown_special_tokens),
        context=prompt_token_ids,
        unspaced=tokenizer.special_token_texts if keep_unspaced else None,
    )
    return Detokenizer(
        stream,
        stop=stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        records_lengths=params.logprobs is not None,
    )


def append_logprobs(
    logprobs: SampleLogprobs | PromptLogprobs,
    entries: Sequence[_core.Logprob],
    texts: Sequence[str | None],
) -> None:
    """Appends one position, whose tokens have these texts."""
    if isinstance(logprobs, FlatLogprobs):
        logprobs.append_fast(
            [entry.token_id for entry in entries],
            [entry.logprob for entry in entries],
            [entry.rank for entry in entries],
            texts,
        )
        return
    position: dict[int, Logprob] = {}
    for entry, text in zip(entries, texts, strict=True):
        position.setdefault(entry.token_id, Logprob(entry.logprob, entry.rank, text))
    logprobs.append(position)
