"""The options that vLLM gives a request beside its prompt and SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_native.engine import Engine
from specdec_native.text.tokenizer import Tokenizer

# What to do in place of the options of a request that would change its answer.
_REFUSED = {
    "lora_request": "merge the adapter into the checkpoint",
    "tokenization_kwargs": "tokenize with get_tokenizer() and give token ids to generate()",
    "mm_processor_kwargs": "only text is supported",
    "guided_options_request": "give SamplingParams(structured_outputs=...)",
    "prompt_adapter_request": "give text or token ids",
    "reasoning_ended": "grammars hold from the first token on",
    "reasoning_parser_kwargs": "split the text after generation",
}
_IGNORED = ("arrival_time", "prompt_text", "session_id", "trace_headers")


def refuse_request_options(**options: Any) -> None:
    """Raises ValueError for an option of a request that would change its answer."""
    for name, value in options.items():
        if name in _IGNORED or (name == "data_parallel_rank" and not value):
            continue
        if name not in _REFUSED:
            raise TypeError(f"unexpected argument {name!r}")
        entries = value if isinstance(value, (list, tuple)) else [value]
        if any(entry is not None and entry != {} for entry in entries):
            raise ValueError(f"{name} is not supported: {_REFUSED[name]}")


def refuse_content_format(content_format: str) -> None:
    """Raises ValueError for a chat_template_content_format that templates are not given here."""
    if content_format not in ("auto", "string"):
        raise ValueError(
            f'chat_template_content_format must be "auto" or "string", got {content_format!r}'
        )


def tokenized(engine: Engine, prompt: Any, options: Mapping[str, Any] | None) -> Any:
    """A prompt with the token ids that `options` of a tokenizer's call give its text.

    vLLM's own `truncate_prompt_tokens` keeps so many last tokens, -1 as many as may be a prompt.
    """
    if not options or (not isinstance(prompt, (str, Mapping)) or "prompt_token_ids" in prompt):
        return prompt
    given = dict(options)
    most = given.pop("truncate_prompt_tokens", None)
    if most is not None:
        limit = engine.vllm_config.model_config.max_model_len - 1
        most = limit if most == -1 else most
        given = {"truncation": True, "truncation_side": "left", "max_length": most, **given}
    parts = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
    tokenizer: Tokenizer = engine.get_tokenizer()
    return {**parts, "prompt_token_ids": tokenizer(parts["prompt"], **given).input_ids}


def all_tokenized(engine: Engine, prompts: Any, options: Mapping[str, Any] | None) -> Any:
    """tokenized() of one prompt or of each of several."""
    if not options:
        return prompts
    if isinstance(prompts, (str, Mapping)):
        return tokenized(engine, prompts, options)
    return [tokenized(engine, prompt, options) for prompt in prompts]
