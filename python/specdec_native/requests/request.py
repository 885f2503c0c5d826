"""A request under way: collects what the core reports and shows it as vLLM's outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specdec_native import _core
from specdec_native.requests.completion import Completion, Shown, append_logprobs
from specdec_native.requests.logprobs import FlatLogprobs, PromptLogprobs
from specdec_native.requests.outputs import (
    AcceptanceCounts,
    CompletionOutput,
    DraftStep,
    RequestMetrics,
    RequestOutput,
)
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.requests.structured_outputs import plain_error
from specdec_native.text.stop_strings import StopStrings
from specdec_native.text.token_texts import TokenTexts

if TYPE_CHECKING:
    from specdec_native.requests.news import Mailbox
    from specdec_native.text.tokenizer import Tokenizer


_NOTHING = Shown()


class Request:
    """State of one request. One thread applies outputs; consumers read in any other."""

    def __init__(
        self,
        request_id: str,
        *,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        prepared: _core.PreparedRequest,
        tokenizer: Tokenizer | None,
        num_spec_tokens: int | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        stop: StopStrings | None = None,
        resumed_token_ids: Sequence[int] = (),
    ) -> None:
        """`num_spec_tokens` is the longest draft, None where the engine does not speculate.

        `stop` holds the stop strings of `params`; requests may share it. For `resumed_token_ids`
        see Prompt.
        """
        self.request_id = request_id
        self.cache_salt = cache_salt
        self.priority = priority
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.resumed_token_ids = resumed_token_ids
        self.params = params
        self.prepared = prepared
        self.numbers: list[int] = []  # the names of its parts in the core
        self.mailbox: Mailbox[Request] | None = None  # belongs to the coroutine that reads it
        self.by_step = False  # Engine.step() advances and reports it
        self.is_silent = False  # no more outputs are reported
        self.error: BaseException | None = None
        self.finished = False
        self.shown = [Shown()] * params.n  # by completion; only the consumer changes it
        self._num_spec_tokens = num_spec_tokens
        self._tokenizer = tokenizer if params.detokenize else None
        self._core_metrics: _core.RequestMetrics | None = None
        self._metrics = RequestMetrics()  # the latest, made from the core's
        self._metrics_key: tuple[float, ...] = ()
        self._finished_time = 0.0
        self._kind = params.output_kind
        self._epoch = time.time() - time.monotonic()  # zero of the core's clock, in time.time()
        self._prompt_logprobs: PromptLogprobs | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = FlatLogprobs() if params.flat_logprobs else []
            self._prompt_logprobs.append(None)
        self._num_given = 0  # completions that have entered the core
        self._num_ended = 0
        self._first_open = 0  # completions before this one have ended and were shown
        self._prompt_texts: TokenTexts | None = None
        if self._tokenizer is not None and self._prompt_logprobs is not None:
            self._prompt_texts = TokenTexts(self._tokenizer, prompt_token_ids[:1])
        stop = StopStrings(params.stop_strings) if stop is None else stop
        self._lock = threading.Lock()  # guards the completions
        self._completions = [
            Completion(
                i,
                params,
                self._tokenizer,
                prompt_token_ids,
                stop=stop,
                num_spec_tokens=num_spec_tokens,
            )
            for i in range(params.n)
        ]
        if resumed_token_ids:
            self._completions[0].resume(resumed_token_ids)
            self.shown[0] = self._completions[0].show()

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all completions so far."""
        return sum(len(completion.token_ids) for completion in self._completions)

    @property
    def num_left(self) -> int:
        """Completions that have not entered the core."""
        return self.params.n - self._num_given

    def take(self, most: int) -> range:
        """Takes up to `most` of the completions that are left; they enter the core now."""
        begin = self._num_given
        self._num_given += min(most, self.num_left)
        return range(begin, self._num_given)

    def num_running(self, which: range) -> int:
        """How many of these completions have not ended."""
        return sum(self._completions[i].finish_reason is None for i in which)

    def num_outputs(self, index: int) -> int:
        """Steps that added tokens to a completion so far."""
        return self._completions[index].num_outputs

    def apply(self, output: _core.RequestOutput, first: int = 0) -> list[int]:
        """Adds a step's output of the part that begins with completion `first`.

        Returns the completions that a stop string has ended, by their index in the part: the core
        does not know this yet.
        Raises RuntimeError if the request failed in the core, ValueError if its grammar was the
        cause, EngineFailed or RankFailure if the whole engine failed.
        """
        if output.error:
            output.raise_engine_failure()
            if output.error.startswith("structured_outputs"):  # the request's own fault
                raise ValueError(self._grammar_error(output.error))
            raise RuntimeError(f"request {self.request_id}: {output.error}")
        with self._lock:
            if first == 0:
                self._core_metrics = output.metrics
            if self._prompt_logprobs is not None:
                for entries in output.new_prompt_logprobs:
                    texts: Sequence[str | None] = [None] * len(entries)
                    if self._prompt_texts is not None:
                        texts = self._prompt_texts.texts(entry.token_id for entry in entries)
                        position = len(self._prompt_logprobs)
                        self._prompt_texts.push(self.prompt_token_ids[position])
                    append_logprobs(self._prompt_logprobs, entries, texts)
            ended_here: list[int] = []
            for part in output.outputs:
                completion = self._completions[first + part.index]
                if completion.finish_reason is not None:
                    continue
                completion.apply(part)
                if completion.finish_reason is None:
                    continue
                self._num_ended += 1
                if part.finish_reason is None:
                    ended_here.append(part.index)
            self._finish_if_ended()
        return ended_here

    def _finish_if_ended(self) -> None:
        if self._num_ended == len(self._completions):
            self._finished_time = time.monotonic()  # the core's clock is the same
            self.finished = True

    def abort_rest(self) -> bool:
        """Ends completions that have not entered the core; returns whether the request ended."""
        with self._lock:
            if self.finished or self.num_left == 0:
                return False
            for completion in self._completions[self._num_given :]:
                completion.finish("abort", None)
            self._num_ended += self.num_left
            self._num_given = self.params.n
            self._finish_if_ended()
            return self.finished

    def end(self, error: BaseException) -> None:
        """Ends the unfinished completions because of an error."""
        with self._lock:
            self.error = error
            self._finished_time = time.monotonic()
            for completion in self._completions:
                if completion.finish_reason is None:
                    completion.finish_reason = "error"
            self._num_given = self.params.n
            self.finished = True

    def _has_unseen_tokens(self) -> bool:
        return any(
            len(completion.token_ids) > shown.num_tokens
            for completion, shown in zip(self._completions, self.shown, strict=True)
        )

    def _open_completions(self) -> Iterator[tuple[Completion, Shown]]:
        """Completions that run or have something to show, with what was shown of each."""
        which = slice(self._first_open, self._num_given)
        return zip(self._completions[which], self.shown[which])  # noqa: B905 - fast

    def has_unseen(self, num_tokens: int) -> bool:
        """Whether a completion has `num_tokens` tokens to show, its first token or its end."""
        for completion, shown in self._open_completions():
            num_new = len(completion.token_ids) - shown.num_tokens
            if num_new >= num_tokens or (num_new > 0 and shown.num_tokens == 0):
                return True
            if completion.finish_reason is not None and not shown.end:
                return True
        return False

    def is_finished(self) -> bool:
        """Whether every completion has ended."""
        return self.finished

    def is_aborted(self) -> bool:
        """Whether the request ended before it was complete."""
        return any(completion.finish_reason == "abort" for completion in self._completions)

    def has_news(self) -> bool:
        """Whether take_output() would return anything new to a streaming consumer."""
        if self.error is not None:
            return True
        if self._kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return False
        interval = self.params.stream_interval or 1
        for completion, shown in self._open_completions():
            if completion.has_news(shown, interval):
                return True
        return False

    def peek(self) -> tuple[RequestOutput, list[Shown]]:
        """The output that output_kind asks for, and the value of `shown` after it was seen."""
        delta = self._kind is RequestOutputKind.DELTA
        with self._lock:
            prompt_logprobs = self._prompt_logprobs
            if prompt_logprobs is not None:
                seen_before = any(shown.num_tokens > 0 for shown in self.shown)
                prompt_logprobs = prompt_logprobs[: 0 if delta and seen_before else None]
            shown_now = list(self.shown)
            outputs: list[CompletionOutput] = []
            if not delta:
                shown_now = [completion.show() for completion in self._completions]
                outputs = [
                    completion.output(_NOTHING, now)
                    for completion, now in zip(self._completions, shown_now, strict=True)
                ]
            else:
                for completion, shown in self._open_completions():
                    if completion.has_news(shown, 1):
                        now = shown_now[completion.index] = completion.show()
                        outputs.append(completion.output(shown, now))
            metrics = self._current_metrics()
            output = RequestOutput(
                request_id=self.request_id,
                prompt=self.prompt,
                prompt_token_ids=self.prompt_token_ids,
                prompt_logprobs=prompt_logprobs,
                outputs=outputs,
                finished=self.finished,
                metrics=metrics,
                num_cached_tokens=metrics.num_cached_tokens,
            )
            return output, shown_now

    def take_output(self) -> RequestOutput:
        """The output that the request's output_kind asks for.

        Raises the error that ended the request once everything before it was shown.
        """
        if self.error is not None and not self._has_unseen_tokens():
            raise self.error
        # There is no call between the store and the return, so an interrupt cannot lose the output.
        output, self.shown = self.peek()
        while self._first_open < self._num_given and self.shown[self._first_open].end:
            self._first_open += 1
        return output

    def _current_metrics(self) -> RequestMetrics:
        """The same object as before where nothing has changed: streams ask after every step."""
        core = self._core_metrics
        if core is None:
            return self._metrics
        is_whole = len(self.numbers) <= 1
        finished = (core.finished_time if is_whole else 0.0) or self._finished_time
        key = (core.first_token_time, finished, core.num_preemptions)
        if key != self._metrics_key or self._num_spec_tokens is not None:
            self._metrics_key = key
            self._metrics = RequestMetrics(
                arrival_time=self._wall_time(core.arrival_time),
                first_scheduled_time=self._wall_time(core.first_scheduled_time),
                first_token_time=self._wall_time(core.first_token_time),
                finished_time=self._wall_time(finished),
                num_cached_tokens=core.num_cached_tokens,
                num_preemptions=core.num_preemptions,
                num_generation_tokens=self.num_output_tokens if self.finished else 0,
                acceptance=AcceptanceCounts.of(
                    [c.acceptance for c in self._completions],
                    self._num_spec_tokens,
                    self._recorded_steps(),
                ),
            )
        return self._metrics

    def _recorded_steps(self) -> list[DraftStep] | None:
        if not (self.params.record_draft_steps and self.finished):
            return None
        return [step for c in self._completions for step in c.recorded_steps() or ()]

    def _grammar_error(self, error: str) -> str:
        """The core's error about a grammar, in the words of the request."""
        if not error.endswith("leave no token"):
            return plain_error(error)
        names = ("structured_outputs", "bad_words", "allowed_token_ids")
        given = [name for name in names if getattr(self.params, name)]
        return (
            f"{given[0]}: no token can come next"
            + (f", together with {' and '.join(given[1:])}" if given[1:] else "")
            + "; allow more"
        )

    def _wall_time(self, seconds: float) -> float:
        return seconds + self._epoch if seconds else 0.0
