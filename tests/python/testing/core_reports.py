"""Requests without an engine, and what the core would report of them."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import tokenizers

from specdec_native import SamplingParams
from specdec_native.requests.request import Request
from specdec_native.text.tokenizer import Tokenizer
from tiny_tokenizers import byte_level


def make_request(
    prompt: str = "hello",
    make_tokenizer: Callable[[], tokenizers.Tokenizer] = byte_level,
    *,
    prompt_ids: list[int] | None = None,
    resumed_token_ids: Sequence[int] = (),
    **options: Any,
) -> tuple[Request, Tokenizer]:
    """A request with these SamplingParams, and its tokenizer."""
    tokenizer = Tokenizer.wrap(make_tokenizer())
    request = Request(
        "r",
        prompt=prompt,
        prompt_token_ids=tokenizer.encode(prompt) if prompt_ids is None else prompt_ids,
        params=SamplingParams(**options),
        prepared=None,  # type: ignore[arg-type]
        tokenizer=tokenizer,
        resumed_token_ids=resumed_token_ids,
    )
    request.take(request.params.n)
    return request, tokenizer


def report(
    *parts: tuple[int, list[int], str | None], stop_token_id: int | None = None
) -> SimpleNamespace:
    """A core output: (completion, new tokens, finish reason) each, logprob -0.5 for every token."""
    return SimpleNamespace(
        metrics=SimpleNamespace(
            arrival_time=1.0,
            first_scheduled_time=2.0,
            first_token_time=3.0,
            finished_time=0.0,
            num_cached_tokens=4,
            num_preemptions=0,
        ),
        new_prompt_logprobs=[],
        error="",
        raise_engine_failure=lambda: None,
        outputs=[
            SimpleNamespace(
                index=index,
                new_token_ids=ids,
                new_logprobs=[
                    [SimpleNamespace(token_id=i, logprob=-0.5, rank=2) for i in (token, 7, token)]
                    for token in ids
                ],
                finish_reason=reason,
                stop_token_id=stop_token_id,
                acceptance=None,
                tapped_states=None,
            )
            for index, ids, reason in parts
        ],
    )


def apply(request: Request, output: SimpleNamespace) -> list[int]:
    """Gives a request what the core reports."""
    return request.apply(output)  # type: ignore[arg-type]
