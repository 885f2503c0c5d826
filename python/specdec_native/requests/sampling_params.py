"""How one request samples. Names, defaults, order and checks follow vLLM's `SamplingParams`."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import logging
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from specdec_native import _core
from specdec_native.common.checks import (
    FLOAT32_MAX,
    INT32_MAX,
    check_flag,
    check_integer,
    check_number,
    check_option,
    check_text,
    shown,
)
from specdec_native.requests.logits_processor import LogitsProcessor
from specdec_native.requests.sampling_arguments import SamplingArguments
from specdec_native.requests.structured_outputs import (
    StructuredOutputsParams,
    structured_outputs_of,
)
from specdec_native.text.reasoning import ReasoningFormat, ReasoningStart

_MIN_TEMPERATURE = 1e-2  # smaller positive temperatures overflow the scaled logits
_GREEDY_BELOW = 1e-5
# Limits beside those of the core.
MAXIMA = {"n": 16384, "temperature": 2.0}

_logger = logging.getLogger("specdec_native")


class RequestOutputKind(enum.Enum):
    """What a streaming consumer receives each time a request has progressed."""

    CUMULATIVE = 0  # the whole output so far
    DELTA = 1  # what is new since the last one
    FINAL_ONLY = 2  # one output, when the request has finished


_FLAGS = (
    "flat_logprobs",
    "ignore_eos",
    "record_draft_steps",
    "record_draft_trees",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "skip_clone",
)


@dataclasses.dataclass(repr=False)
class SamplingParams(SamplingArguments):
    """Sampling parameters of one request.

    Every argument has vLLM's name and meaning. A value out of range, NaN or infinite raises a
    ValueError that names the argument; so does a vLLM argument this engine cannot honour.

    Args:
        n: completions generated for the prompt; completion i samples with seed + i; in [1, 16384].
        presence_penalty: subtracted once from tokens the output already contains; in [-2, 2].
        frequency_penalty: subtracted once per occurrence in the output; in [-2, 2].
        repetition_penalty: divides (or multiplies) logits of tokens in prompt and output; greater
            than 0.
        temperature: 0 is greedy; in [0, 2].
        top_p: draw from the most likely tokens that together have this probability; in (0, 1].
        top_k: draw from so many of the most likely tokens; 0 or -1 for all.
        min_p: least probability relative to the most likely token's; in [0, 1].
        seed: fixes the noise of this request; without one it is derived from the engine's seed and
            the order of arrival.
        stop: string or strings that end a completion.
        stop_token_ids: token ids that end a completion.
        ignore_eos: keep generating past the end-of-sequence token.
        max_tokens: tokens generated at most; None for as many as max_model_len leaves.
        min_tokens: tokens generated before any stop condition counts.
        logprobs: report the top-N logprobs of every generated token beside the sampled one's; -1
            for the whole vocabulary.
        prompt_logprobs: the same for every prompt token.
        detokenize: whether to make text; False leaves `text` empty.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: keep the spaces a decoder puts between special tokens.
        include_stop_str_in_output: keep the stop string in the text.
        output_kind: what streaming delivers.
        stream_interval: tokens between two streamed outputs; the first and last come at once.
        logit_bias: token id (int or numeric string) to a number added to its logit.
        allowed_token_ids: only these may be generated.
        bad_words: strings that the answer never contains, whichever tokens would spell them and
            whatever stands around them; spaces in front of one do not count.
        structured_outputs: what the text must look like, a StructuredOutputsParams or a dict of its
            fields. The text then ends where the grammar does, whatever ignore_eos and min_tokens
            say.
        guided_decoding: vLLM's older name of structured_outputs.
        thinking_token_budget: tokens at most between the marks of the model's reasoning, of a model
            whose chat template shows the marks; then the end of the reasoning is written. -1 or
            None for any number.
        num_speculative_tokens: tokens drafted ahead at most, where the engine speculates; 0 drafts
            none. Without it, what the engine is set to, which is also the most.
        prediction: what the answer is expected to be, such as the text that it edits, as text or
            token ids: drafted from, where the engine speculates. It changes no answer, and is
            ignored where the engine does not speculate.
        record_draft_steps: report how many tokens each step drafted and kept, where the engine
            speculates.
        record_draft_trees: report every drafted token, with what proposed it and whether it was
            kept.
        flat_logprobs: report logprobs and prompt_logprobs as FlatLogprobs, a few long lists.
        logits_processors: functions f(output_token_ids, logits) or f(prompt_token_ids,
            output_token_ids, logits) that return the logits of the next token, a float32 NumPy
            array of the whole vocabulary that they may change; -inf forbids a token. They run one
            after the other, after allowed_token_ids, bad_words, min_tokens and logit_bias and
            before the penalties, temperature, min_p, top_k and top_p, as in vLLM. Each must be a
            function of its arguments alone: a speculating engine calls it for drafted tokens, too.
            It runs in the thread that steps the engine, which it must not call. What it raises ends
            its request with a RuntimeError.
    """

    __struct_fields__: ClassVar[tuple[str, ...]]  # of vLLM's class: the names of the fields

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    logit_bias: Mapping[Any, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None

    _: dataclasses.KW_ONLY
    num_speculative_tokens: int | None = None
    prediction: str | Sequence[int] | None = None
    record_draft_steps: bool = False
    record_draft_trees: bool = False
    flat_logprobs: bool = False
    logits_processors: Sequence[Callable[..., Any]] | None = None
    guided_decoding: StructuredOutputsParams | Mapping[str, Any] | None = None
    thinking_token_budget: int | None = None

    # No arguments: a server sets these.
    # Texts of special tokens that skip_special_tokens leaves in.
    shown_special_tokens = frozenset[str]()
    # How the model thinks before what structured_outputs describe; None: not at all.
    reasoning: ReasoningFormat | None = None
    # Whether it does; None where the prompt tells.
    reasoning_start: ReasoningStart | None = None

    def __post_init__(self) -> None:
        self.validate()

    @staticmethod
    def from_optional(**kwargs: Any) -> SamplingParams:
        """Builds parameters where None stands for the default, as an API server receives them."""
        bias = kwargs.get("logit_bias")
        if isinstance(bias, Mapping):
            kwargs["logit_bias"] = {
                token: min(100.0, max(-100.0, check_number(f"logit_bias[{shown(token)}]", value)))
                for token, value in bias.items()
            }
        nullable = {"max_tokens"}
        given = {k: v for k, v in kwargs.items() if v is not None or k in nullable}
        return SamplingParams(**given)

    def __repr__(self) -> str:
        """Shows what differs from the defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        shown = {
            name: getattr(self, name)
            for name, default in defaults.items()
            if getattr(self, name) != default and getattr(self, name) != []
        }
        return f"SamplingParams({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def clone(self) -> SamplingParams:
        """An independent copy."""
        if self.skip_clone:
            return copy.copy(self)
        # Processors are shared, whatever they hold.
        return copy.deepcopy(self, {id(f): f for f in self.logits_processors or ()})

    def validate(self) -> None:
        """Checks every field and brings it into its canonical form.

        Runs on construction and again when a request is made, since fields may be assigned between.
        """
        self.refuse_unsupported(self.n)
        self._check_numbers()
        self._check_flags()
        self._check_lengths()
        self._check_stops()
        self._check_tokens()
        self._check_logits_processors()
        self._check_structured_outputs()
        if self.temperature < _GREEDY_BELOW:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            if self.n > 1:
                raise ValueError(
                    f"n must be 1 when using greedy sampling (temperature=0), got {self.n}"
                )

    def _check_numbers(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is True:
                setattr(self, name, 1)
        for option in _core.SamplingParams.options:
            value = getattr(self, option.name, None)
            is_optional = option.zero is not None or option.type.endswith("None")
            if option.lowest is not None and not (is_optional and value is None):
                checked = check_option(option, value, maximum=MAXIMA.get(option.name))
                setattr(self, option.name, checked)
        check_number("repetition_penalty", self.repetition_penalty, maximum=FLOAT32_MAX)
        tokens = self.num_speculative_tokens or 0
        check_integer("num_speculative_tokens", tokens, minimum=0, maximum=INT32_MAX)
        if self.thinking_token_budget == -1:  # vLLM's spelling of "no budget"
            self.thinking_token_budget = None
        if self.thinking_token_budget is not None:
            self.thinking_token_budget = check_integer(
                "thinking_token_budget", self.thinking_token_budget, minimum=0, maximum=INT32_MAX
            )
        if 0.0 < self.temperature < _MIN_TEMPERATURE:
            _warn_of_low_temperatures()
            self.temperature = _MIN_TEMPERATURE
        if self.seed is not None:
            self.seed = check_integer("seed", self.seed, minimum=-(2**63), maximum=2**64 - 1)
            if self.seed == -1:  # vLLM's spelling of "no seed"
                self.seed = None

    def _check_flags(self) -> None:
        for name in _FLAGS:
            setattr(self, name, check_flag(name, getattr(self, name)))

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}"
            )
        if self.stream_interval is not None:
            self.stream_interval = check_integer("stream_interval", self.stream_interval, minimum=1)
        if not isinstance(self.output_kind, RequestOutputKind):
            raise ValueError(
                f"output_kind must be a RequestOutputKind, got {shown(self.output_kind)}"
            )

    def _check_stops(self) -> None:
        self.stop = _strings("stop", self.stop)
        self.bad_words = list(dict.fromkeys(_strings("bad_words", self.bad_words)))
        if self.stop and not self.detokenize:
            raise ValueError(
                "stop strings need text: set detokenize=True, or use stop_token_ids instead"
            )

    def _check_tokens(self) -> None:
        ids = _token_ids("stop_token_ids", self.stop_token_ids)
        self.stop_token_ids = list(dict.fromkeys(ids))
        if self.allowed_token_ids is not None:
            ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            self.allowed_token_ids = list(dict.fromkeys(ids))
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids must not be empty; use None to allow all")
        if self.logit_bias is not None:
            self.logit_bias = _logit_bias(self.logit_bias)
        if isinstance(self.prediction, str):
            check_text("prediction", self.prediction)
        elif self.prediction is not None:
            self.prediction = _token_ids("prediction", self.prediction)

    def _check_logits_processors(self) -> None:
        if self.logits_processors is None:
            return
        if callable(self.logits_processors) or not isinstance(self.logits_processors, Sequence):
            raise ValueError(
                f"logits_processors must be a list of functions, got "
                f"{shown(self.logits_processors)}"
            )
        for function in self.logits_processors:
            LogitsProcessor(function)

    def _check_structured_outputs(self) -> None:
        older = structured_outputs_of(self.guided_decoding, "guided_decoding")
        self.structured_outputs = structured_outputs_of(
            self.structured_outputs, "structured_outputs"
        )
        if older is None:
            return
        if self.structured_outputs not in (None, older):
            raise ValueError("guided_decoding is the older name of structured_outputs; give one")
        self.structured_outputs, self.guided_decoding = older, None

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return _strings("stop", self.stop)


SamplingParams.__struct_fields__ = tuple(f.name for f in dataclasses.fields(SamplingParams))


@functools.cache
def _warn_of_low_temperatures() -> None:
    """Warns once."""
    _logger.warning(
        "temperatures between 0 and %s would overflow; using %s", _MIN_TEMPERATURE, _MIN_TEMPERATURE
    )


def _strings(name: str, value: str | Sequence[str] | None) -> list[str]:
    if value is None:
        return []
    try:
        strings = [value] if isinstance(value, str) else list(value)
    except TypeError:
        raise ValueError(f"{name} must be a string or a list of them, got {shown(value)}") from None
    for item in strings:
        if not isinstance(item, str):
            raise ValueError(f"{name} must contain only strings, got {shown(item)}")
        if not item:
            raise ValueError(f"{name} cannot contain an empty string")
        check_text(f"{name} entry {shown(item)}", item)
    return strings


def _token_ids(name: str, value: Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        entries = list(value)
    except TypeError:
        raise ValueError(f"{name} must be a list of integers, got {shown(value)}") from None
    return [check_integer(f"{name} entry", item, minimum=0, maximum=INT32_MAX) for item in entries]


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {shown(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        try:
            if isinstance(key, str) and not re.fullmatch("-?[0-9]+", key):
                raise ValueError
            token = int(key) if isinstance(key, str) else operator.index(key)
        except (TypeError, ValueError):
            raise ValueError(
                f"logit_bias keys must be token ids (integers or decimal digits), got {shown(key)}"
            ) from None
        check_integer("logit_bias key", token, minimum=0, maximum=INT32_MAX)
        biases[token] = check_number(
            f"logit_bias[{token}]", bias, minimum=-FLOAT32_MAX, maximum=FLOAT32_MAX
        )
    return biases
