"""Beam search with vLLM's parameters and outputs, over an engine's ordinary requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from specdec_native.common.checks import check_flag, check_integer, check_number, shown
from specdec_native.engine import Engine
from specdec_native.requests.inputs import Prompt, PromptType, parse_prompts
from specdec_native.requests.logprobs import Logprob
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams


@dataclasses.dataclass
class BeamSearchParams:
    """How to search for the likeliest continuations of a prompt.

    Args:
        beam_width: continuations kept at every token, and returned. The engine reports the
            2 * beam_width likeliest tokens of each: its max_logprobs must allow that.
        max_tokens: tokens of a continuation at most.
        ignore_eos: search on past the end-of-sequence token.
        temperature: the temperature of the engine's requests during the search. It changes scores
            only where the engine's logprobs_mode is a processed one.
        length_penalty: a continuation's score is its cumulative logprob / length ** length_penalty,
            where the length does not count the prompt; in [-50, 50].
        include_stop_str_in_output: accepted; `tokens` has the end-of-sequence token either way, as
            in vLLM's LLM.beam_search.
        skip_special_tokens: leave special tokens out of the text.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: Any = None
    skip_special_tokens: bool = True
    watermarking: Any = None
    allowed_token_ids: Any = None

    def __post_init__(self) -> None:
        self.beam_width = check_integer("beam_width", self.beam_width, minimum=1)
        self.max_tokens = check_integer("max_tokens", self.max_tokens, minimum=1)
        self.temperature = check_number("temperature", self.temperature, minimum=0.0, maximum=2.0)
        self.length_penalty = check_number(
            "length_penalty", self.length_penalty, minimum=-50.0, maximum=50.0
        )
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            setattr(self, name, check_flag(name, getattr(self, name)))
        for name in ("structured_outputs", "allowed_token_ids", "watermarking"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported by beam search; leave it out")


@dataclasses.dataclass
class BeamSearchSequence:
    """A continuation.

    Attributes:
        tokens: the prompt and what follows it.
        logprobs: the likeliest tokens of every position after the prompt.
        cum_logprob: the sum of the logprobs of the tokens after the prompt.
        text: the text of all tokens; None without a tokenizer.
        finish_reason: "stop" at the end of a sequence, else "length".
        stop_reason: the token that ended it.
    """

    orig_prompt: PromptType
    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    lora_request: Any = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclasses.dataclass
class BeamSearchOutput:
    """The best continuations of a prompt, the best one first."""

    sequences: list[BeamSearchSequence]


@dataclasses.dataclass
class _Search:
    """The search of one prompt."""

    beams: list[BeamSearchSequence]
    num_steps: int
    completed: list[BeamSearchSequence] = dataclasses.field(default_factory=list)


def beam_search(
    engine: Engine,
    prompts: PromptType | Sequence[PromptType],
    params: BeamSearchParams,
    concurrency_limit: int | None = None,
) -> list[BeamSearchOutput]:
    """The best continuations of each prompt, in order.

    Each beam is extended by a request of one token; the prefix cache holds the tokens before.
    `concurrency_limit` is the number of prompts searched at once; None searches all.
    Raises ValueError if a prompt or parameter is bad.
    """
    if not isinstance(params, BeamSearchParams):
        raise ValueError(f"params must be BeamSearchParams, got {shown(params)}")
    searches = [_start(engine, prompt, params) for prompt in parse_prompts(prompts)]
    at_once = len(searches) or 1
    if concurrency_limit is not None:
        at_once = check_integer("concurrency_limit", concurrency_limit, minimum=1)
    for first in range(0, len(searches), at_once):
        while _step(engine, searches[first : first + at_once], params):
            pass
    return [BeamSearchOutput(_best(engine, search, params)) for search in searches]


def _start(engine: Engine, prompt: Prompt, params: BeamSearchParams) -> _Search:
    tokens = prompt.token_ids
    if tokens is None:
        tokens = engine.tokenizer.encode(prompt.text or "")
    original: PromptType = {"prompt_token_ids": tokens}
    if prompt.text is not None:
        original = {"prompt": prompt.text, "prompt_token_ids": tokens}
    # A prompt that is too long by itself is the engine's error.
    room = max(1, engine.model_info().max_model_len - len(tokens))
    return _Search([BeamSearchSequence(original, tokens, [])], min(params.max_tokens, room))


def _step(engine: Engine, searches: Sequence[_Search], params: BeamSearchParams) -> bool:
    """Makes every beam one token longer; returns whether any beam was left."""
    running = [search for search in searches if search.num_steps > 0 and search.beams]
    if not running:
        return False
    request = SamplingParams(
        logprobs=min(2 * params.beam_width, engine.model_info().vocab_size),
        max_tokens=1,
        temperature=params.temperature,
        detokenize=False,
    )
    outputs = iter(
        engine.generate(
            [beam.tokens for search in running for beam in search.beams], request, use_tqdm=False
        )
    )
    stops = () if params.ignore_eos else engine.eos_token_ids
    for search in running:
        longer: list[BeamSearchSequence] = []
        for beam in search.beams:
            for new in _continuations(beam, next(outputs)):
                if new.tokens[-1] in stops:
                    new.finish_reason, new.stop_reason = "stop", new.tokens[-1]
                    search.completed.append(new)
                else:
                    longer.append(new)
        search.beams = _ranked(longer, params)[: params.beam_width]
        search.num_steps -= 1
    return True


def _continuations(beam: BeamSearchSequence, output: RequestOutput) -> Iterator[BeamSearchSequence]:
    for logprobs in output.outputs[0].logprobs or ():  # one position; none if it was aborted
        for token, entry in logprobs.items():
            yield dataclasses.replace(
                beam,
                tokens=[*beam.tokens, token],
                logprobs=[*beam.logprobs, logprobs],
                cum_logprob=beam.cum_logprob + entry.logprob,
            )


def _best(engine: Engine, search: _Search, params: BeamSearchParams) -> list[BeamSearchSequence]:
    for beam in search.beams:
        beam.finish_reason = "length"
    best = _ranked([*search.completed, *search.beams], params)[: params.beam_width]
    for beam in best:
        if engine.has_tokenizer:
            beam.text = engine.tokenizer.decode(
                beam.tokens, skip_special_tokens=params.skip_special_tokens
            )
    return best


def _ranked(
    beams: Iterable[BeamSearchSequence], params: BeamSearchParams
) -> list[BeamSearchSequence]:
    def score(beam: BeamSearchSequence) -> float:
        return beam.cum_logprob / float(len(beam.logprobs) ** params.length_penalty)

    return sorted(beams, key=score, reverse=True)
