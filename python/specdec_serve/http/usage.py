"""The token counts in answers."""

from __future__ import annotations

from specdec_native.requests.outputs import CompletionOutput, SpeculativeDecodingMetrics
from specdec_serve.http.chunks import dumps
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Generation, Service


class UsageCounter:
    """Counts the tokens of one call as its outputs are read.

    Attributes:
        num_tokens: generated tokens of each choice.
    """

    def __init__(
        self, generation: Generation, options: ServerOptions, *, counts_output: bool = True
    ) -> None:
        """`counts_output` is False where generated tokens are not shown."""
        self._n = generation.call.params.n
        self._num_prompt = [len(request.prompt_token_ids) for request in generation.requests]
        self._num_cached = [0] * len(self._num_prompt)
        self._shows_cached = options.prompt_tokens_details
        self._counts_output = counts_output
        self._predicted: dict[int, SpeculativeDecodingMetrics] | None = None
        if generation.call.params.prediction is not None:
            self._predicted = {}
        self.num_tokens = [0] * (self._n * len(self._num_prompt))

    def count(self, index: int, part: CompletionOutput, num_cached: int | None) -> None:
        """Adds news of a choice; `num_cached`: cached tokens of its prompt, once known."""
        if self._counts_output:
            self.num_tokens[index] += len(part.token_ids)
        if self._predicted is not None and part.acceptance is not None:
            self._predicted[index] = part.acceptance.metrics
        if num_cached:
            self._num_cached[index // self._n] = num_cached

    def usage(self, num_reasoning: int | None = None) -> str:
        """The `usage` of the answer, as JSON; `num_reasoning` of its tokens are reasoning."""
        return _usage(
            sum(self._num_prompt),
            sum(self.num_tokens),
            sum(self._num_cached) if self._shows_cached else None,
            None if self._predicted is None else list(self._predicted.values()),
            num_reasoning,
        )

    def usage_of(self, index: int) -> str:
        """The usage of one choice so far, for a stream's chunks."""
        prompt_index = index // self._n
        return _usage(
            self._num_prompt[prompt_index],
            self.num_tokens[index],
            self._num_cached[prompt_index] if self._shows_cached else None,
            None if self._predicted is None else list(filter(None, [self._predicted.get(index)])),
        )


def reasoning_tokens(service: Service, text: str) -> int:
    """The tokens of reasoning, counted by its text."""
    return len(service.engine.tokenizer.encode(text, add_special_tokens=False)) if text else 0


def _usage(
    num_prompt: int,
    num_completion: int,
    num_cached: int | None,
    predicted: list[SpeculativeDecodingMetrics] | None,
    num_reasoning: int | None = None,
) -> str:
    details = "null" if num_cached is None else f'{{"cached_tokens":{num_cached}}}'
    return (
        f'{{"prompt_tokens":{num_prompt},"completion_tokens":{num_completion},'
        f'"total_tokens":{num_prompt + num_completion},"prompt_tokens_details":{details}'
        f"{_completion_details(num_completion, predicted, num_reasoning)}}}"
    )


def _completion_details(
    num_completion: int,
    predicted: list[SpeculativeDecodingMetrics] | None,
    num_reasoning: int | None,
) -> str:
    """How many tokens are reasoning, and how the drafts from the request's prediction fared.

    Nothing where neither is known.
    """
    details = {}
    if num_reasoning is not None:
        details["reasoning_tokens"] = min(num_reasoning, num_completion)
    if predicted is not None:
        accepted = sum(each.num_accepted_prediction_tokens for each in predicted)
        details["accepted_prediction_tokens"] = accepted
        rejected = sum(each.num_prediction_tokens for each in predicted) - accepted
        details["rejected_prediction_tokens"] = rejected
    return f',"completion_tokens_details":{dumps(details)}' if details else ""
