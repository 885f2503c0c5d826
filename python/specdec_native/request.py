"""A request under way: collects what the core reports and shows it as vLLM's outputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_native.detokenizer import Detokenizer, TextStream
from specdec_native.logprobs import FlatLogprobs, Logprob, PromptLogprobs, SampleLogprobs
from specdec_native.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    SpeculativeDecodingMetrics,
)
from specdec_native.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from specdec_native import _core
    from specdec_native.tokenizer import Tokenizer

_MAX_CHAR_TOKENS = 4  # a UTF-8 character has at most so many bytes, so tokens


class Request:
    """State of one request. Used under the engine's lock."""

    def __init__(
        self,
        request_id: str,
        *,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        core_params: _core.SamplingParams,
        tokenizer: Tokenizer | None,
        owned: bool,
        num_spec_tokens: int | None = None,
    ) -> None:
        """An `owned` request is read by whoever added it; the others through Engine.step().

        `num_spec_tokens` is the most it may draft, None where the engine does not speculate.
        """
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.core_params = core_params
        self.owned = owned
        self._num_spec_tokens = num_spec_tokens
        self.error: Exception | None = None
        self._tokenizer = tokenizer if params.detokenize else None
        self._core_metrics: _core.RequestMetrics | None = None
        self._finished_time = 0.0
        self._prompt_logprobs: PromptLogprobs | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = FlatLogprobs() if params.flat_logprobs else []
            self._prompt_logprobs.append(None)
        self._prompt_logprobs_sent = False
        self._completions = [
            _Completion(i, params, self._tokenizer, prompt_token_ids, num_spec_tokens)
            for i in range(params.n)
        ]

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.finish_reason is not None for completion in self._completions)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all completions so far."""
        return sum(len(completion.token_ids) for completion in self._completions)

    def apply(self, output: _core.RequestOutput) -> list[int]:
        """Takes in what a step reported.

        Returns the completions that a stop string has ended: the core does not know of it yet.
        Raises RuntimeError where the core has given the request up.
        """
        if output.error:
            raise RuntimeError(f"request {self.request_id}: {output.error}")
        self._core_metrics = output.metrics
        if self._prompt_logprobs is not None:
            for entries in output.new_prompt_logprobs:
                before = self.prompt_token_ids[: len(self._prompt_logprobs)]
                _append_logprobs(self._prompt_logprobs, entries, self._tokenizer, before)
        ended_here: list[int] = []
        for part in output.outputs:
            completion = self._completions[part.index]
            if completion.finish_reason is not None:
                continue
            completion.apply(part)
            if completion.finish_reason is not None and part.finish_reason is None:
                ended_here.append(part.index)
        if ended_here and self.finished:
            self._finished_time = time.monotonic()  # the core's clock is the same
        return ended_here

    def end(self, error: Exception | None = None) -> None:
        """Ends what is unfinished with finish_reason "abort"."""
        self.error = error
        for completion in self._completions:
            if completion.finish_reason is None:
                completion.finish("abort", None)

    def has_news(self) -> bool:
        """Whether take_output would tell a streaming consumer something."""
        interval = self.params.stream_interval or 1
        if self.params.output_kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return False
        return any(completion.has_news(interval) for completion in self._completions)

    def take_output(self) -> RequestOutput:
        """What the request's output_kind asks for. Raises the error that ended the request."""
        if self.error is not None:
            raise self.error
        delta = self.params.output_kind is RequestOutputKind.DELTA
        prompt_logprobs = self._prompt_logprobs
        if delta and self._prompt_logprobs_sent and prompt_logprobs is not None:
            prompt_logprobs = prompt_logprobs[:0]
        self._prompt_logprobs_sent = True
        metrics = self._metrics()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=None if prompt_logprobs is None else prompt_logprobs[:],
            outputs=[
                completion.take(delta)
                for completion in self._completions
                if not delta or completion.has_news(1)
            ],
            finished=self.finished,
            metrics=metrics,
            num_cached_tokens=metrics.num_cached_tokens,
        )

    def _metrics(self) -> RequestMetrics:
        core = self._core_metrics
        if core is None:
            return RequestMetrics()
        return RequestMetrics(
            arrival_time=core.arrival_time,
            first_scheduled_time=core.first_scheduled_time,
            first_token_time=core.first_token_time,
            finished_time=core.finished_time or self._finished_time,
            num_cached_tokens=core.num_cached_tokens,
            num_preemptions=core.num_preemptions,
            speculative_decoding=self._speculative_metrics(),
        )

    def _speculative_metrics(self) -> SpeculativeDecodingMetrics | None:
        if self._num_spec_tokens is None:
            return None
        counts = [c.acceptance for c in self._completions if c.acceptance is not None]
        return SpeculativeDecodingMetrics.from_counts(counts, self._num_spec_tokens)


class _Completion:
    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        prompt_token_ids: Sequence[int],
        num_spec_tokens: int | None,
    ) -> None:
        self.index = index
        self.acceptance: _core.AcceptanceStats | None = None
        self._num_spec_tokens = num_spec_tokens
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._tokenizer = tokenizer
        self._detokenizer = (
            None if tokenizer is None else _make_detokenizer(params, tokenizer, prompt_token_ids)
        )
        self._logprobs: SampleLogprobs | None = None
        if params.logprobs is not None:
            self._logprobs = FlatLogprobs() if params.flat_logprobs else []
        self._cumulative_logprob = None if params.logprobs is None else 0.0
        self._sent_tokens = 0
        self._sent_chars = 0
        self._sent_end = False

    def apply(self, part: _core.CompletionOutput) -> None:
        if part.acceptance is not None:
            self.acceptance = part.acceptance
        new_ids = part.new_token_ids
        num_kept = len(new_ids)
        stop_string = None
        if self._detokenizer is not None:
            num_kept = self._detokenizer.extend(
                new_ids, stop_token_last=part.finish_reason == "stop"
            )
            stop_string = self._detokenizer.stop_string
        for i in range(num_kept):
            if self._logprobs is not None and self._cumulative_logprob is not None:
                entries = part.new_logprobs[i]
                _append_logprobs(self._logprobs, entries, self._tokenizer, self.token_ids)
                self._cumulative_logprob += entries[0].logprob
            self.token_ids.append(new_ids[i])
        if stop_string is not None:
            self.finish("stop", stop_string)
        elif part.finish_reason is not None:
            self.finish(part.finish_reason, part.stop_token_id)

    def finish(self, reason: str, stop_reason: int | str | None) -> None:
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if self._detokenizer is not None:
            self._detokenizer.finish()

    def has_news(self, interval: int) -> bool:
        if self.finish_reason is not None:
            return not self._sent_end
        num_new = len(self.token_ids) - self._sent_tokens
        return num_new >= interval or (num_new > 0 and self._sent_tokens == 0)

    def take(self, delta: bool) -> CompletionOutput:
        text = ""
        if self._detokenizer is not None:
            text = self._detokenizer.text[: self._detokenizer.num_certain_chars()]
        first_token, first_char = (self._sent_tokens, self._sent_chars) if delta else (0, 0)
        self._sent_tokens, self._sent_chars = len(self.token_ids), len(text)
        self._sent_end = self.finish_reason is not None
        return CompletionOutput(
            index=self.index,
            text=text[first_char:],
            token_ids=self.token_ids[first_token:],
            cumulative_logprob=self._cumulative_logprob,
            logprobs=None if self._logprobs is None else self._logprobs[first_token:],
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            speculative_decoding=self._speculative_metrics(),
        )

    def _speculative_metrics(self) -> SpeculativeDecodingMetrics | None:
        if self._num_spec_tokens is None:
            return None
        counts = [] if self.acceptance is None else [self.acceptance]
        return SpeculativeDecodingMetrics.from_counts(counts, self._num_spec_tokens)


def _make_detokenizer(
    params: SamplingParams, tokenizer: Tokenizer, prompt_token_ids: Sequence[int]
) -> Detokenizer:
    keep_unspaced = not (params.skip_special_tokens or params.spaces_between_special_tokens)
    stream = TextStream(
        tokenizer,
        skip_special_tokens=params.skip_special_tokens,
        context=prompt_token_ids,
        unspaced=tokenizer.special_token_texts if keep_unspaced else None,
    )
    return Detokenizer(
        stream,
        stop=params.stop_strings,
        include_stop_str_in_output=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
    )


def _append_logprobs(
    logprobs: SampleLogprobs | PromptLogprobs,
    entries: Sequence[_core.Logprob],
    tokenizer: Tokenizer | None,
    before: Sequence[int],
) -> None:
    """Appends one position; `before` are the tokens that precede it."""
    texts: dict[int, str | None] = {}
    position: dict[int, Logprob] = {}
    for entry in entries:
        if entry.token_id not in texts:
            text = None if tokenizer is None else _token_text(tokenizer, entry.token_id, before)
            texts[entry.token_id] = text
            if not isinstance(logprobs, FlatLogprobs):
                position[entry.token_id] = Logprob(entry.logprob, entry.rank, text)
    if isinstance(logprobs, FlatLogprobs):
        logprobs.append_fast(
            [entry.token_id for entry in entries],
            [entry.logprob for entry in entries],
            [entry.rank for entry in entries],
            [texts[entry.token_id] for entry in entries],
        )
    else:
        logprobs.append(position)


def _token_text(tokenizer: Tokenizer, token_id: int, before: Sequence[int]) -> str:
    """The text a token adds: a token that completes a character has it, one that does not, none."""
    text = tokenizer.token_text(token_id)
    if not text.endswith("\ufffd"):
        return text
    context = list(before[-_MAX_CHAR_TOKENS:])
    with_token = tokenizer.decode([*context, token_id])
    if with_token.endswith("\ufffd"):
        return ""
    return with_token[len(tokenizer.decode(context).rstrip("\ufffd")) :]
