"""What a request returns: vLLM's output classes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from specdec_native.requests.logprobs import PromptLogprobs, SampleLogprobs

if TYPE_CHECKING:
    import numpy.typing as npt

    from specdec_native import _core


DraftStep: TypeAlias = tuple[int, int]  # tokens that a step verified, and those it kept


@dataclasses.dataclass(frozen=True)
class DraftedToken:
    """A token that was drafted and verified.

    Attributes:
        token_id: its id.
        parent: the drafted token it follows, by index in DraftTree.tokens; -1 for the last token
            of the completion.
        drafter: the name of the method that proposed it first.
        probability: the drafter's estimate that it is kept if its parent is; None where the device
            drafted.
        is_accepted: whether it was kept.
    """

    token_id: int
    parent: int
    drafter: str
    probability: float | None
    is_accepted: bool


@dataclasses.dataclass(frozen=True)
class DraftTree:
    """What one step drafted for a completion.

    Attributes:
        num_tokens: tokens of the completion before the step. The accepted drafts, in order, are the
            tokens from there on; the one after them is the target's own.
        tokens: drafted tokens, parents before children.
    """

    num_tokens: int
    tokens: list[DraftedToken]

    @classmethod
    def of(cls, num_tokens: int, tokens: Sequence[_core.DraftedToken]) -> DraftTree:
        """The tree as the core recorded it."""
        return cls(
            num_tokens,
            [
                DraftedToken(t.token_id, t.parent, t.drafter, t.probability, t.is_accepted)
                for t in tokens
            ],
        )


@dataclasses.dataclass
class SpeculativeDecodingMetrics:
    """How drafts fared. A step counts if it verified at least one drafted token.

    Attributes:
        mean_acceptance_length: tokens a step emits, 1 + accepted / steps; 1 without steps.
        draft_acceptance_rate: share of the drafted tokens that was kept; 0 without drafts.
        acceptance_histogram: steps that kept 0, 1, ... num_spec_tokens drafted tokens.
        num_spec_steps: steps.
        num_accepted_draft_tokens: drafted tokens that were kept.
        num_draft_tokens: drafted tokens that were verified, those of all branches of a tree.
        num_spec_tokens: the longest draft there can be.
        num_emitted_tokens: tokens these steps added to the output.
        proposed_per_position: steps that drafted the first, second, ... token.
        accepted_per_position: steps that kept the first, second, ... token.
        num_accepted_prediction_tokens: tokens of the request's prediction that were kept.
        num_prediction_tokens: tokens of the request's prediction that were drafted and verified.
        per_step_accepted: drafted tokens that each step kept, in order, one completion after the
            other. None before the end, or without record_draft_steps.
        per_step_drafted: drafted tokens that each of these steps verified.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    num_emitted_tokens: int
    proposed_per_position: list[int]
    accepted_per_position: list[int]
    num_accepted_prediction_tokens: int = 0
    num_prediction_tokens: int = 0
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None

    @classmethod
    def from_counts(
        cls,
        counts: Iterable[Counts],
        num_spec_tokens: int,
        recorded: Sequence[DraftStep] | None = None,
    ) -> SpeculativeDecodingMetrics:
        """The metrics of all counts, and of the recorded steps."""
        counts = list(counts)
        steps = sum(c.num_steps for c in counts)
        drafted = sum(c.num_draft_tokens for c in counts)
        accepted = sum(c.num_accepted_tokens for c in counts)
        return cls(
            mean_acceptance_length=1.0 + (accepted / steps if steps else 0.0),
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=_sum([c.histogram for c in counts], num_spec_tokens + 1),
            num_spec_steps=steps,
            num_accepted_draft_tokens=accepted,
            num_draft_tokens=drafted,
            num_spec_tokens=num_spec_tokens,
            num_emitted_tokens=sum(c.num_emitted_tokens for c in counts),
            proposed_per_position=_sum([c.proposed_per_position for c in counts], num_spec_tokens),
            accepted_per_position=_sum([c.accepted_per_position for c in counts], num_spec_tokens),
            num_accepted_prediction_tokens=sum(c.num_predicted_accepted_tokens for c in counts),
            num_prediction_tokens=sum(c.num_predicted_draft_tokens for c in counts),
            per_step_accepted=None if recorded is None else [kept for _, kept in recorded],
            per_step_drafted=None if recorded is None else [drafted for drafted, _ in recorded],
        )


class _PickledCounts(NamedTuple):
    """The fields of the core's AcceptanceStats that metrics use; the core's cannot be pickled."""

    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_emitted_tokens: int
    num_predicted_draft_tokens: int
    num_predicted_accepted_tokens: int
    proposed_per_position: list[int]
    accepted_per_position: list[int]
    histogram: list[int]

    @classmethod
    def of(cls, counts: Counts) -> _PickledCounts:
        """The same counts."""
        return cls(*(getattr(counts, name) for name in cls._fields))


Counts: TypeAlias = "_core.AcceptanceStats | _PickledCounts"


class AcceptanceCounts:
    """Counts of drafts. SpeculativeDecodingMetrics are made from them on demand."""

    def __init__(
        self,
        counts: list[Counts],
        num_spec_tokens: int,
        steps: list[DraftStep] | None = None,
    ) -> None:
        """`steps` are the recorded steps, None if nothing was to be recorded."""
        self._counts = counts
        self._num_spec_tokens = num_spec_tokens
        self._steps = steps

    @classmethod
    def of(
        cls,
        counts: Iterable[_core.AcceptanceStats | None],
        num_spec_tokens: int | None,
        steps: list[DraftStep] | None = None,
    ) -> AcceptanceCounts | None:
        """The counts of completions; None in `counts` for one without counts yet.

        Returns None if the engine does not speculate.
        """
        if num_spec_tokens is None:
            return None
        return cls([c for c in counts if c is not None], num_spec_tokens, steps)

    @classmethod
    def merged(cls, several: Sequence[AcceptanceCounts]) -> AcceptanceCounts:
        """The counts of several requests together, of at least one."""
        counts = [count for each in several for count in each._counts]
        recorded = [each._steps for each in several if each._steps is not None]
        steps = [step for steps in recorded for step in steps] if recorded else None
        return cls(counts, max(each._num_spec_tokens for each in several), steps)

    @functools.cached_property
    def metrics(self) -> SpeculativeDecodingMetrics:
        """The metrics of all counts."""
        return SpeculativeDecodingMetrics.from_counts(
            self._counts, self._num_spec_tokens, self._steps
        )

    def __reduce__(self) -> tuple[Any, ...]:
        counts = [_PickledCounts.of(count) for count in self._counts]
        return AcceptanceCounts, (counts, self._num_spec_tokens, self._steps)


def _sum(lists: Sequence[Sequence[int]], length: int) -> list[int]:
    """The sum of each position; positions past the end of a list are 0."""
    return [sum(x[i] for x in lists if i < len(x)) for i in range(length)]


@dataclasses.dataclass
class CompletionOutput:
    """One completion of a request.

    Attributes:
        index: which of the request's n completions.
        text: the generated text.
        token_ids: the generated token ids, an end-of-sequence token included.
        cumulative_logprob: sum of the chosen tokens' logprobs; None unless logprobs were asked for.
        logprobs: one dict a token, token id to Logprob; None unless asked for. A FlatLogprobs with
            flat_logprobs.
        finish_reason: "stop", "length", "abort" or "error"; None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for end of sequence.
        acceptance: the counts behind speculative_decoding. Not compared when completions are.
        tapped_states: with Engine's `taps`, once the completion has ended: the states of the
            prompt's and the completion's tokens, except for the last token, which the model never
            processed: [tokens, taps, hidden size] in the dtype the engine computes in, bfloat16 as
            its bits in uint16. None for a completion that was aborted or that a stop string ended.
        draft_trees: what each step drafted, for the tokens shown; None unless record_draft_trees
            asked for them. Not compared when completions are.
        text_lengths: with logprobs, how many characters each token added to the text, before a stop
            string is cut off. Not compared when completions are.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    routed_experts: ClassVar[None] = None  # an attribute of vLLM's
    acceptance: AcceptanceCounts | None = dataclasses.field(default=None, compare=False, repr=False)
    tapped_states: npt.NDArray[Any] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )
    draft_trees: list[DraftTree] | None = dataclasses.field(default=None, compare=False, repr=False)
    text_lengths: list[int] | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def speculative_decoding(self) -> SpeculativeDecodingMetrics | None:
        """How its drafts fared; None unless the engine speculates."""
        return None if self.acceptance is None else self.acceptance.metrics

    def finished(self) -> bool:
        """Whether this completion has ended."""
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestMetrics:
    """When a request arrived, started and finished: seconds as in time.time(); 0 for not yet.

    queued_ts, scheduled_ts, first_token_ts and last_token_ts are vLLM's names of the first four.

    Attributes:
        num_generation_tokens: tokens of all completions, once they have ended.
    """

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    finished_time: float = 0.0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_generation_tokens: int = 0
    acceptance: AcceptanceCounts | None = dataclasses.field(default=None, repr=False)

    @property
    def queued_ts(self) -> float:
        """arrival_time."""
        return self.arrival_time

    @property
    def scheduled_ts(self) -> float:
        """first_scheduled_time."""
        return self.first_scheduled_time

    @property
    def first_token_ts(self) -> float:
        """first_token_time."""
        return self.first_token_time

    @property
    def last_token_ts(self) -> float:
        """finished_time."""
        return self.finished_time

    last_token_time = last_token_ts

    @property
    def speculative_decoding(self) -> SpeculativeDecodingMetrics | None:
        """How the drafts of all completions fared; None unless the engine speculates."""
        return None if self.acceptance is None else self.acceptance.metrics

    @property
    def time_in_queue(self) -> float:
        """Seconds from arrival until the request first ran."""
        return max(0.0, self.first_scheduled_time - self.arrival_time)

    @property
    def first_token_latency(self) -> float:
        """Seconds from arrival to the first generated token."""
        return max(0.0, self.first_token_time - self.arrival_time)


@dataclasses.dataclass
class RequestOutput:
    """A request's state or result.

    Attributes:
        request_id: the request's id.
        prompt: the prompt text; None if it was given as token ids.
        prompt_token_ids: the prompt's token ids.
        prompt_logprobs: one dict a prompt token, None for the first; None unless asked for. A
            FlatLogprobs, whose first entry is empty, with flat_logprobs.
        outputs: the completions.
        finished: whether every completion has ended.
        metrics: when it arrived, started and finished, and how its drafts fared.
        num_cached_tokens: prompt tokens served by the prefix cache.

    Attributes that vLLM has for other kinds of models are None.
    """

    encoder_prompt: ClassVar[None] = None
    encoder_prompt_token_ids: ClassVar[None] = None
    kv_transfer_params: ClassVar[None] = None
    multi_modal_placeholders: ClassVar[None] = None

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    lora_request: Any = None


@dataclasses.dataclass
class DrafterStats:
    """What one drafter contributed, and the host memory it holds now."""

    name: str
    num_draft_tokens: int
    num_accepted_tokens: int
    memory_bytes: int


@dataclasses.dataclass
class DraftPolicyStats:
    """The decisions of draft_length_policy "auto". A decision is for one request in one step.

    Attributes:
        num_decisions: decisions where drafting was possible.
        num_without_drafts: decisions to verify nothing.
        num_drafted_tokens: tokens drafted.
        num_verified_tokens: drafted tokens that were worth verifying.
        num_probes: times a drafter that does not pay was tried again.
        num_measuring_steps: steps with fewer drafts than would be best, to measure their cost.
        is_paused: for dozens of steps next to nothing was verified of what could be.
        num_pauses_too_costly: pauses because drafts take longer than the tokens they should add.
        num_pauses_no_credit: pauses because drafts have lost as much time as they may.
        saved_seconds: time saved against decoding without drafts, by the measured costs.
        mean_draft_length: verified tokens per decision that verified any.
    """

    num_decisions: int
    num_without_drafts: int
    num_drafted_tokens: int
    num_verified_tokens: int
    num_probes: int
    num_measuring_steps: int
    is_paused: bool
    num_pauses_too_costly: int
    num_pauses_no_credit: int
    saved_seconds: float
    mean_draft_length: float


@dataclasses.dataclass
class StepTokens:
    """Steps by the number of tokens they computed, drafted tokens included.

    Attributes:
        bounds: the most tokens of each bucket but the last, which has no bound.
        counts: steps by bucket.
        sum: tokens of all steps.
    """

    bounds: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    sum: int = 0


@dataclasses.dataclass
class EngineLoad:
    """How busy an engine is. Unfinished requests run or wait.

    Attributes:
        num_running: requests that have begun to run, preempted ones included.
        num_waiting: requests that have not begun to run.
        num_waiting_tokens: prompt tokens of the waiting requests.
        num_free_kv_blocks: blocks of the KV cache that a request may take.
        num_kv_blocks: all blocks of the KV cache.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_free_kv_blocks: int
    num_kv_blocks: int


@dataclasses.dataclass
class EngineStats:
    """Counts and times of an engine since it was made.

    num_running, num_waiting and the free and cached blocks are current values. num_device_steps
    counts steps that a GPU ran as one launch; their sampling is in forward_seconds.
    num_overlapped_steps counts steps launched while others were running. The time to verify drafts
    is in forward_seconds and sample_seconds. speculative_decoding is None, and drafters empty,
    unless the engine speculates; draft_policy is None unless the length of drafts adapts.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_kv_blocks: int = 0
    num_free_kv_blocks: int = 0
    num_cached_kv_blocks: int = 0
    num_steps: int = 0
    num_device_steps: int = 0
    num_overlapped_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_finished_requests: int = 0
    num_aborted_requests: int = 0
    schedule_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    commit_seconds: float = 0.0
    draft_seconds: float = 0.0
    speculative_decoding: SpeculativeDecodingMetrics | None = None
    drafters: list[DrafterStats] = dataclasses.field(default_factory=list)
    draft_policy: DraftPolicyStats | None = None
    step_tokens: StepTokens = dataclasses.field(default_factory=StepTokens)

    @classmethod
    def from_core(
        cls,
        num_spec_tokens: int,
        *,
        acceptance: _core.AcceptanceStats,
        drafters: list[dict[str, Any]],
        draft_policy: dict[str, Any],
        step_tokens: dict[str, Any],
        **fields: Any,
    ) -> EngineStats:
        """The statistics of an engine that drafts `num_spec_tokens` at most; 0 if it never does."""
        stats = cls(**fields, step_tokens=StepTokens(**step_tokens))
        if num_spec_tokens > 0:
            stats.speculative_decoding = SpeculativeDecodingMetrics.from_counts(
                [acceptance], num_spec_tokens
            )
            stats.drafters = [DrafterStats(**drafter) for drafter in drafters]
        if draft_policy["num_decisions"] > 0:
            stats.draft_policy = DraftPolicyStats(**draft_policy)
        return stats
