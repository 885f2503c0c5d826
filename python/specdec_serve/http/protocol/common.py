"""Fields that completions and chat completions share."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from specdec_native.requests.inputs import Prompt
from specdec_native.requests.request_builder import GenerationDefaults
from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.body import Body, Fields
from specdec_serve.http.protocol.structured import ResponseFormat, StructuredOutputs
from specdec_serve.http.service import as_sent
from specdec_serve.http.structured import Grammar, grammar_of

Integer = pydantic.StrictInt
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Fields of features that are not implemented: refused unless empty, naming the feature.
_MISSING = {
    "logits_processors": "logits processors of requests are not run by this server",
    "use_beam_search": "beam search is not served; use LLM.beam_search",
    "logprob_token_ids": "logprobs of chosen tokens are not supported; ask for more logprobs",
    "prompt_embeds": "prompts are text or token ids; embeddings are not supported",
}


class StreamOptions(Fields):
    """OpenAI's stream_options: what a stream reports beside its choices."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationFields(Body):
    """The fields of completions and chat completions."""

    n: int = 1
    seed: int | None = pydantic.Field(None, ge=-(2**63), le=2**63 - 1)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, pydantic.StrictFloat] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    allowed_token_ids: list[Integer] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = pydantic.Field(None, ge=-1)
    truncation_side: Literal["left", "right"] = "left"
    prompt_logprobs: Integer | None = None
    structured_outputs: StructuredOutputs | None = None
    logits_processors: list[Any] | None = None
    use_beam_search: bool = False
    logprob_token_ids: list[int] | None = None
    prompt_embeds: Any = None
    priority: int = pydantic.Field(0, ge=-(2**31), le=2**31 - 1)
    request_id: str | None = pydantic.Field(None, max_length=256)
    cache_salt: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    stream_interval: int | None = None
    num_speculative_tokens: int | None = None
    thinking_token_budget: int | None = pydantic.Field(None, ge=-1, le=2**31 - 1)

    def check(self) -> None:
        """Raises ApiError for values that are refused for any engine."""
        for name, why in _MISSING.items():
            if getattr(self, name):
                raise bad_request(f"{name}: {why}", name)
        self.grammar()
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream=true", "stream_options")
        if self.stream and self.prompt_logprobs:
            raise bad_request("prompt_logprobs cannot be streamed", "prompt_logprobs")
        if self.truncate_prompt_tokens == 0:
            raise bad_request(
                "truncate_prompt_tokens must be at least 1, or -1 for what fits; 0 leaves no "
                "prompt",
                "truncate_prompt_tokens",
            )

    def grammar(self) -> Grammar | None:
        """The answer's grammar; None for any text. Raises ApiError for a bad field."""
        return grammar_of(self.response_format, self.structured_outputs)

    def field_names(self) -> dict[str, str]:
        """Engine fields with a different name in the body, with that name."""
        grammar = self.grammar()
        if grammar is None:
            return {"structured_outputs": "tools"}  # those of strict functions
        return (
            {} if grammar.field == "structured_outputs" else {"structured_outputs": grammar.field}
        )

    def truncated_to(self, max_model_len: int) -> int | None:
        """How many tokens of a prompt to keep; None for all. Raises ApiError for too many.

        The last tokens are kept, or the first with truncation_side="right".
        """
        kept = self.truncate_prompt_tokens
        if kept == -1:
            return max_model_len - 1  # leaves room for one generated token
        if kept is not None and kept > max_model_len:
            raise bad_request(
                f"truncate_prompt_tokens={kept} cannot be greater than max_model_len="
                f"{max_model_len}; ask for fewer",
                "truncate_prompt_tokens",
            )
        return kept

    def complete(self, prompt: Prompt, truncate_to: int | None = None) -> None:
        """Puts into a prompt what the body says of it beside the text."""
        prompt.truncate_to = truncate_to
        prompt.keeps_beginning = self.truncation_side == "right"
        prompt.cache_salt = self.cache_salt

    def sampling_params(
        self, defaults: GenerationDefaults, max_tokens: int | None, **further: Any
    ) -> SamplingParams:
        """The parameters: `further` takes precedence over this request's, then the checkpoint's.

        Without any limit, completions end at the end of the context. Logprobs are FlatLogprobs.
        """
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        grammar = self.grammar()
        if grammar is not None:
            given["structured_outputs"] = grammar.params
        given |= further
        if self.logit_bias is not None:
            given["logit_bias"] = {
                token: -100.0 if bias < -100 else 100.0 if bias > 100 else bias
                for token, bias in self.logit_bias.items()
            }
        params = defaults.params.clone()
        params.flat_logprobs = True
        params.max_tokens = defaults.max_tokens if max_tokens is None else max_tokens
        if params.max_tokens is not None and defaults.most_tokens is not None:
            params.max_tokens = min(params.max_tokens, defaults.most_tokens)
        for name, value in given.items():
            if value is not None:
                setattr(params, name, value)
        try:
            params.validate()
        except ValueError as error:
            raise as_sent(str(error), self.field_names()) from error
        return params


def check_continued(continue_final_message: bool, add_generation_prompt: bool) -> None:
    """Raises ApiError where both ways to continue a conversation are requested."""
    if continue_final_message and add_generation_prompt:
        raise bad_request(
            "continue_final_message and add_generation_prompt exclude each other: set "
            "add_generation_prompt=false",
            "continue_final_message",
        )


def check_max_tokens(name: str, max_tokens: int | None, max_model_len: int) -> None:
    """Raises ApiError for more tokens than the model could ever generate."""
    if max_tokens is not None and max_tokens > max_model_len:
        raise bad_request(
            f"{name}={max_tokens} cannot be greater than max_model_len={max_model_len}: this "
            f"model's maximum context length is {max_model_len} tokens. Please ask for fewer",
            name,
        )


def check_n(n: int, num_prompts: int, most: int) -> None:
    """Raises ApiError for more completions than the server allows in a request."""
    if n * num_prompts > most:
        of_prompts = f" of each of {num_prompts} prompts" if num_prompts > 1 else ""
        raise bad_request(
            f"n={n} completions{of_prompts} are more than this server's {most} in a request "
            "(--max-n-sequences); ask for fewer",
            "n",
        )


_SAMPLING_FIELDS = (
    *("n", "seed", "stop", "temperature", "top_p", "top_k", "min_p", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output"),
    *("ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("allowed_token_ids", "bad_words", "prompt_logprobs", "num_speculative_tokens"),
    *("stream_interval", "thinking_token_budget"),
)
