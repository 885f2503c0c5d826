"""The forms a prompt may take."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from specdec_native.checks import check_text
from specdec_native.requests.sampling_params import SamplingParams


class _TextPrompt(TypedDict):
    prompt: str


class TextPrompt(_TextPrompt, total=False):
    """A prompt as text."""

    prompt_token_ids: Sequence[int]


class _TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


class TokensPrompt(_TokensPrompt, total=False):
    """A prompt as token ids; `prompt` is reported with the output."""

    prompt: str


PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt

_KNOWN_KEYS = ("prompt", "prompt_token_ids")


@dataclasses.dataclass
class Prompt:
    """A prompt in one form: text, token ids or both (then the ids count)."""

    text: str | None
    token_ids: list[int] | None


def parse_prompts(prompts: Any) -> list[Prompt]:
    """Reads one prompt or several. Raises ValueError naming the one that is wrong."""
    if isinstance(prompts, (str, bytes, Mapping)) or _is_token_list(prompts):
        return [parse_prompt(prompts)]
    try:
        entries = list(prompts)
    except TypeError:
        raise ValueError(_expected("prompts", prompts)) from None
    return [parse_prompt(entry, f"prompts[{i}]") for i, entry in enumerate(entries)]


def parse_prompt(prompt: Any, name: str = "prompt") -> Prompt:
    """Reads one prompt; `name` is what errors call it."""
    if isinstance(prompt, str):
        return Prompt(check_text(name, prompt), None)
    if isinstance(prompt, Mapping):
        return _parse_mapping(prompt, name)
    return Prompt(None, _token_ids(prompt, name))


def pair_with_params(
    params: SamplingParams | Sequence[SamplingParams], num_prompts: int
) -> list[SamplingParams]:
    """One set of sampling parameters a prompt."""
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if isinstance(params, Sequence) and not isinstance(params, (str, bytes)):
        if len(params) != num_prompts:
            raise ValueError(
                f"sampling_params has {len(params)} entries for {num_prompts} prompts; give one "
                "for each, or a single one for all"
            )
        for i, entry in enumerate(params):
            if not isinstance(entry, SamplingParams):
                raise ValueError(f"sampling_params[{i}] must be SamplingParams, got {entry!r}")
        return list(params)
    raise ValueError(f"sampling_params must be SamplingParams or a list of them, got {params!r}")


def _parse_mapping(prompt: Mapping[str, Any], name: str) -> Prompt:
    for key, value in prompt.items():
        if key not in _KNOWN_KEYS and value is not None and value != {}:
            raise ValueError(
                f"{name}: the key {key!r} is not supported; a prompt dict has "
                '"prompt" (text) or "prompt_token_ids"'
            )
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise ValueError(f'{name} needs "prompt" (text) or "prompt_token_ids"')
    if text is not None and not isinstance(text, str):
        raise ValueError(f'{name}["prompt"] must be a str, got {type(text).__name__}')
    if ids is not None:
        return Prompt(text, _token_ids(ids, f'{name}["prompt_token_ids"]'))
    return Prompt(check_text(f'{name}["prompt"]', text or ""), None)


def _is_token_list(value: Any) -> bool:
    try:
        operator.index(value[0])
    except (TypeError, IndexError, KeyError, ValueError):
        return False
    return True


def _token_ids(value: Any, name: str) -> list[int]:
    if isinstance(value, (bytes, int)):
        raise ValueError(_expected(name, value))
    try:
        return [operator.index(token) for token in value]
    except TypeError:
        raise ValueError(_expected(name, value)) from None


def _expected(name: str, value: Any) -> str:
    return f"{name} must be text, a list of token ids or a prompt dict, got {value!r:.80}"
