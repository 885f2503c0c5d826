"""A request under way: collects what the core reports and shows it as vLLM's outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_native import _core
from specdec_native.requests.logprobs import FlatLogprobs, Logprob, PromptLogprobs, SampleLogprobs
from specdec_native.requests.outputs import (
    AcceptanceCounts,
    CompletionOutput,
    DraftStep,
    DraftTree,
    RequestMetrics,
    RequestOutput,
)
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.requests.structured_outputs import plain_error
from specdec_native.text.detokenizer import Detokenizer, TextStream
from specdec_native.text.stop_strings import StopStrings
from specdec_native.text.token_texts import TokenTexts

if TYPE_CHECKING:
    import numpy.typing as npt

    from specdec_native.requests.mailbox import Mailbox
    from specdec_native.text.tokenizer import Tokenizer


class Shown(NamedTuple):
    """How much of a completion its consumer has seen."""

    num_tokens: int = 0
    num_chars: int = 0
    end: bool = False


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
        core_params: _core.SamplingParams,
        tokenizer: Tokenizer | None,
        num_spec_tokens: int | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        stop: StopStrings | None = None,
        resumed_token_ids: Sequence[int] = (),
    ) -> None:
        """`num_spec_tokens` is the most it may draft, None where the engine does not speculate.

        `stop` has the stop strings of `params`, for requests that share them. For
        `resumed_token_ids` see Prompt.
        """
        self.request_id = request_id
        self.cache_salt = cache_salt
        self.priority = priority
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.resumed_token_ids = resumed_token_ids
        self.params = params
        self.core_params = core_params
        self.numbers: list[int] = []  # of its parts in the core
        self.mailbox: Mailbox[Request] | None = None  # of the coroutine that reads it
        self.by_step = False  # Engine.step() advances and reports it
        self.is_silent = False  # nothing more is reported of it
        self.error: BaseException | None = None
        self.finished = False
        self.shown = [Shown()] * params.n  # by completion; only the consumer changes it
        self._num_spec_tokens = num_spec_tokens
        self._tokenizer = tokenizer if params.detokenize else None
        self._core_metrics: _core.RequestMetrics | None = None
        self._metrics = RequestMetrics()  # made of the core's, last
        self._metrics_key: tuple[float, ...] = ()
        self._finished_time = 0.0
        self._kind = params.output_kind
        self._epoch = time.time() - time.monotonic()  # of the core's clock
        self._prompt_logprobs: PromptLogprobs | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = FlatLogprobs() if params.flat_logprobs else []
            self._prompt_logprobs.append(None)
        self._num_given = 0  # completions that the core was given
        self._num_ended = 0
        self._first_open = 0  # those before it have ended and were shown
        self._prompt_texts: TokenTexts | None = None
        if self._tokenizer is not None and self._prompt_logprobs is not None:
            self._prompt_texts = TokenTexts(self._tokenizer, prompt_token_ids[:1])
        stop = StopStrings(params.stop_strings) if stop is None else stop
        self._lock = threading.Lock()  # completions are read and changed whole
        self._completions = [
            _Completion(
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
    def core_options(self) -> _core.RequestOptions:
        """How the core serves it."""
        return _core.RequestOptions(
            cache_salt=self.cache_salt or "",
            priority=self.priority,
            resumed_token_ids=self.resumed_token_ids,
        )

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all completions so far."""
        return sum(len(completion.token_ids) for completion in self._completions)

    @property
    def num_left(self) -> int:
        """Completions that the core was not given."""
        return self.params.n - self._num_given

    def take(self, most: int) -> range:
        """Up to so many of the completions that are left, which the core is now given."""
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
        """Takes in what a step reported of the part whose first completion this is.

        Returns the completions that a stop string has ended, by their index in the part: the core
        does not know of it yet.
        Raises RuntimeError where the core has given the request up, ValueError where its grammar
        was why, EngineFailed or RankFailure where all of them.
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
                        place = len(self._prompt_logprobs)
                        self._prompt_texts.push(self.prompt_token_ids[place])
                    _append_logprobs(self._prompt_logprobs, entries, texts)
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
        """Ends the completions that the core was not given; returns whether that ends all of it."""
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
        """Ends what is unfinished because of an error."""
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

    def _open_completions(self) -> Iterator[tuple[_Completion, Shown]]:
        """Those that run or have something to show, with what was shown."""
        which = slice(self._first_open, self._num_given)
        return zip(self._completions[which], self.shown[which])  # noqa: B905 - fast

    def has_unseen(self, num_tokens: int) -> bool:
        """Whether a completion has so many tokens to show, its first or its end."""
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
        """Whether it ended before it was complete."""
        return any(completion.finish_reason == "abort" for completion in self._completions)

    def has_news(self) -> bool:
        """Whether take_output would tell a streaming consumer something."""
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
        """What the request's output_kind asks for, and `shown` for once it was seen."""
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
        """What the request's output_kind asks for.

        Raises the error that ended the request once everything before it was shown.
        """
        if self.error is not None and not self._has_unseen_tokens():
            raise self.error
        # No call stands between the store and the return, so an interrupt cannot lose the output.
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
        """What the core's error about a grammar is in the words of the request."""
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


class _Completion:
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
        """Begins behind tokens whose logprobs are elsewhere."""
        self.token_ids.extend(token_ids)
        if self._detokenizer is not None:
            self._detokenizer.extend(token_ids)
        for token_id in token_ids:
            if self._texts is not None:
                self._texts.push(token_id)
            if self._logprobs is not None:
                self._logprobs.append({})

    def apply(self, part: _core.CompletionOutput) -> None:
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
                _append_logprobs(self._logprobs, entries, self._texts_of(entries))
                self._cumulative_logprob += entries[0].logprob
            self.token_ids.append(new_ids[i])
        if stop_string is not None:
            self.finish("stop", stop_string)
        elif part.finish_reason is not None:
            self.finish(part.finish_reason, part.stop_token_id)

    def _texts_of(self, entries: Sequence[_core.Logprob]) -> list[str | None]:
        """The texts of the next position's tokens, of which the first one is the completion's."""
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
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if self._detokenizer is not None:
            self._detokenizer.finish()

    def recorded_steps(self) -> list[DraftStep] | None:
        """What its steps drafted, once it has ended; None where nothing was to be recorded."""
        return None if self.finish_reason is None else self._draft_steps

    def has_news(self, shown: Shown, interval: int) -> bool:
        if self.finish_reason is not None:
            return not shown.end
        num_new = len(self.token_ids) - shown.num_tokens
        return num_new >= interval or (num_new > 0 and shown.num_tokens == 0)

    def show(self) -> Shown:
        """What a consumer has seen who sees everything that is certain."""
        num_chars = 0 if self._detokenizer is None else self._detokenizer.num_certain_chars()
        return Shown(len(self.token_ids), num_chars, self.finish_reason is not None)

    def output(self, shown: Shown, now: Shown) -> CompletionOutput:
        """What there is beyond what was shown; `now` is show()."""
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
        """Those of steps whose first token is among the tokens [begin, end)."""
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


def _append_logprobs(
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
