"""The forms a prompt may take."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from specdec_native.common.checks import INT32_MAX, INT64_MIN, check_integer, check_text, shown
from specdec_native.requests.sampling_params import SamplingParams


class _TextPrompt(TypedDict):
    prompt: str


class TextPrompt(_TextPrompt, total=False):
    """A prompt as text."""

    prompt_token_ids: Sequence[int]
    cache_salt: str


class _TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


class TokensPrompt(_TokensPrompt, total=False):
    """A prompt as token ids; `prompt` is reported with the output."""

    prompt: str
    cache_salt: str


PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt

_KNOWN_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_LONGEST_SALT = 128
_NOT_IN_SALTS = "@/\\\0"


@dataclasses.dataclass
class Prompt:
    """A prompt in one form: text, token ids or both (then the ids count).

    Attributes:
        text: the text, or None.
        token_ids: its tokens, or None until it is tokenized.
        add_special_tokens: whether tokenizing adds what the tokenizer puts around a text.
        truncate_to: only the last `truncate_to` tokens are used; None for all.
        keeps_beginning: truncation keeps the first tokens instead of the last.
        cache_salt: prompts share cached beginnings only with prompts of the same salt.
        is_echoed: `text` has to be the text of the tokens that remain after truncation.
        is_continued: whether it ends with a part of the answer.
        resumed_token_ids: the first tokens of its answer, which were generated and shown elsewhere.
            Outputs must be deltas and begin after these tokens. One completion only.
    """

    text: str | None
    token_ids: list[int] | None
    add_special_tokens: bool = True
    truncate_to: int | None = None
    keeps_beginning: bool = False
    cache_salt: str | None = None
    is_echoed: bool = False
    is_continued: bool = False
    resumed_token_ids: Sequence[int] = ()

    def truncate(self) -> bool:
        """Cuts tokens away if there are too many; returns whether it cut any."""
        if self.truncate_to is None or self.token_ids is None:
            return False
        num_tokens = len(self.token_ids)
        if num_tokens <= self.truncate_to:
            return False
        begin = 0 if self.keeps_beginning else num_tokens - self.truncate_to
        self.token_ids = self.token_ids[begin : begin + self.truncate_to]
        return True


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
    """One set of sampling parameters per prompt."""
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


def pair_with_priority(priority: int | Sequence[int] | None, num_prompts: int) -> list[int]:
    """One priority per prompt; None stands for 0."""
    entries: Sequence[Any]
    if isinstance(priority, Sequence) and not isinstance(priority, (str, bytes)):
        entries = priority
    else:
        entries = [0 if priority is None else priority] * num_prompts
    if len(entries) != num_prompts:
        raise ValueError(f"priority has {len(entries)} entries for {num_prompts} prompts")
    return [check_integer("priority", entry, minimum=INT64_MIN) for entry in entries]


def is_list_of_conversations(messages: Any) -> bool:
    """Whether chat() was given several conversations."""
    return (
        isinstance(messages, Sequence)
        and not isinstance(messages, (str, bytes))
        and bool(messages)
        and isinstance(messages[0], Sequence)
        and not isinstance(messages[0], (str, bytes))
    )


def _parse_mapping(prompt: Mapping[str, Any], name: str) -> Prompt:
    for key, value in prompt.items():
        if key not in _KNOWN_KEYS and value is not None and value != {}:
            raise ValueError(
                f"{name}: the key {key!r} is not supported; a prompt dict has "
                '"prompt" (text) or "prompt_token_ids", and perhaps "cache_salt"'
            )
    salt = prompt.get("cache_salt")
    if salt is not None:
        salt = check_cache_salt(f'{name}["cache_salt"]', salt)
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise ValueError(f'{name} needs "prompt" (text) or "prompt_token_ids"')
    if text is not None and not isinstance(text, str):
        raise ValueError(f'{name}["prompt"] must be a str, got {type(text).__name__}')
    if ids is not None:
        token_ids = _token_ids(ids, f'{name}["prompt_token_ids"]')
        return Prompt(text, token_ids, cache_salt=salt)
    return Prompt(check_text(f'{name}["prompt"]', text or ""), None, cache_salt=salt)


def check_cache_salt(name: str, value: Any) -> str:
    """`value` as a salt of the prefix cache. Raises ValueError where vLLM does."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty, got {shown(value)}")
    if len(value) > _LONGEST_SALT:
        raise ValueError(
            f"{name} must have at most {_LONGEST_SALT} characters, got {len(value)}; give a hash"
        )
    wrong = next((c for c in value if c in _NOT_IN_SALTS), None)
    if wrong is not None:
        raise ValueError(f"{name} must not contain {wrong!r}; give a hash in hexadecimal digits")
    return check_text(name, value)


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
        ids = [operator.index(token) for token in value]
    except TypeError:
        raise ValueError(_expected(name, value)) from None
    if wrong := [token for token in ids if not -INT32_MAX <= token <= INT32_MAX]:
        raise ValueError(f"{name}: has the token id {shown(wrong[0])}, which is out of vocabulary")
    return ids


def _expected(name: str, value: Any) -> str:
    return f"{name} must be text, a list of token ids or a prompt dict, got {value!r:.80}"
