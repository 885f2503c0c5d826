"""What a request returns: vLLM's output classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(slots=True)
class Logprob:
    """One candidate token of a position. `rank` 1 is the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# One dict a position, the chosen token first; the first prompt token has none.
SampleLogprobs = list[dict[int, Logprob]]
PromptLogprobs = list[dict[int, Logprob] | None]


@dataclasses.dataclass
class CompletionOutput:
    """One completion of a request.

    Attributes:
        index: which of the request's n completions.
        text: the generated text.
        token_ids: the generated token ids, an end-of-sequence token included.
        cumulative_logprob: sum of the chosen tokens' logprobs; None unless logprobs were asked for.
        logprobs: one dict a token, token id to Logprob; None unless asked for.
        finish_reason: "stop", "length", "abort"; None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for end of sequence.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None

    def finished(self) -> bool:
        """Whether this completion has ended."""
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestMetrics:
    """When things happened to a request: seconds on the engine's monotonic clock, 0 for not yet."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    finished_time: float = 0.0
    num_cached_tokens: int = 0
    num_preemptions: int = 0

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
        prompt_logprobs: one dict a prompt token, None for the first; None unless asked for.
        outputs: the completions.
        finished: whether every completion has ended.
        metrics: when it arrived, started and finished.
        num_cached_tokens: prompt tokens served by the prefix cache.
    """

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
class EngineStats:
    """Counts and times of an engine since it was made.

    num_running, num_waiting and the free and cached blocks are those of now.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_kv_blocks: int = 0
    num_free_kv_blocks: int = 0
    num_cached_kv_blocks: int = 0
    num_steps: int = 0
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
