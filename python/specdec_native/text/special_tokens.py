"""The tokens that the files beside a tokenizer.json name, read as transformers' AutoTokenizer does.

tokenizer_config.json names them in `added_tokens_decoder`, in keys such as "eos_token", and in
`extra_special_tokens`, whose older name is `additional_special_tokens`. Where it has no
`added_tokens_decoder`, special_tokens_map.json and added_tokens.json count as well, and keys of
special_tokens_map.json take precedence. Every fault is a CheckpointError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.text.tokenizer_files import optional_json

_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_DECODER = "added_tokens_decoder"
_EXTRA, _OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

Token = tokenizers.AddedToken


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The tokens that the files name.

    Attributes:
        names: names such as "eos_token" to text, with a model's own names such as "image_token".
        added: the tokens to add. Tokens that are new to the tokenizer get the next ids, in this
            order.
    """

    names: Mapping[str, str]
    added: Sequence[Token]


def read_special_tokens(
    directory: Path, config: Mapping[str, Any], tokenizer: tokenizers.Tokenizer
) -> SpecialTokens:
    """Reads them; `config` is tokenizer_config.json, `tokenizer` what tokenizer.json makes."""
    known = tokenizer.get_added_tokens_decoder()
    config_file = directory / "tokenizer_config.json"
    values = _values(config, config_file)
    if _OLD_EXTRA in values and not values.get(_EXTRA):
        values[_EXTRA] = values.pop(_OLD_EXTRA)
    own = {
        name: values.pop(name)
        for name in list(values)
        if name not in (*_NAMES, _EXTRA, _OLD_EXTRA) and isinstance(config[name], str)
    }
    _move_named(values, own)
    if config.get(_DECODER) is not None:
        added = _declared(config[_DECODER], config_file)
    else:
        _merge(values, directory / "special_tokens_map.json")
        _move_named(values, own)
        added = _listed(directory / "added_tokens.json", values) | known
    if _OLD_EXTRA in values:
        values.setdefault(_EXTRA, values.pop(_OLD_EXTRA))
    if tokenizer.padding is not None:
        values.setdefault("pad_token", tokenizer.padding["pad_token"])
    extra = values.pop(_EXTRA, None) or []
    if isinstance(extra, dict):
        own, extra = extra | own, []
    named = {name: values.pop(name) for name in _NAMES if name in values} | values | own
    names = {name: str(token) for name, token in named.items() if token is not None}
    return SpecialTokens(names, _in_order(known, added, [*named.values(), *extra], names))


def _in_order(
    known: Mapping[int, Token],
    added: Mapping[int, Token],
    special: Sequence[str | Token | None],
    names: Mapping[str, str],
) -> list[Token]:
    """The tokens to add: first tokens with an id in a file, then special tokens that no list has.
    Tokens that the tokenizer already has with the same flags are left out."""
    before = {token.content: repr(token) for token in known.values()}
    tokens = [token for _, token in sorted(added.items())]
    present = before.keys() | {token.content for token in tokens}
    # Repeats are dropped; if they differ in flags the last one counts.
    for token in {repr(token): token for token in special if token is not None}.values():
        if str(token) not in present:
            tokens.append(Token(token, special=True) if isinstance(token, str) else token)
    for token in tokens:
        token.special = token.special or token.content in names.values()
    return [token for token in tokens if repr(token) != before.get(token.content)]


def _move_named(values: dict[str, Any], own: dict[str, Any]) -> None:
    """Moves extra special tokens that have names to the model's own names."""
    if isinstance(values.get(_EXTRA), dict):
        own |= values.pop(_EXTRA)


def _merge(values: dict[str, Any], file: Path) -> None:
    """Puts special_tokens_map.json over what tokenizer_config.json says; lists are joined."""
    stated = _values(optional_json(file), file, always_special=True)
    if isinstance(stated.get(_EXTRA), list):
        stated[_EXTRA] = [*(values.get(_EXTRA) or []), *stated[_EXTRA]]
    values |= stated


def _listed(file: Path, values: Mapping[str, Any]) -> dict[int, Token]:
    """added_tokens.json, {"<text>": id}; special are those that `values` name."""
    extra = values.get(_EXTRA) or []
    special = {str(token) for token in (*map(values.get, _NAMES), *extra) if token is not None}
    tokens: dict[int, Token] = {}
    for text, token_id in optional_json(file).items():
        if not isinstance(token_id, int):
            raise CheckpointError(f'{text!r:.80}: expected {{"<text>": <token id>, ...}}', file)
        is_special = text in special
        tokens[token_id] = Token(text, normalized=not is_special, special=is_special)
    return tokens


def _declared(value: Any, source: Path) -> dict[int, Token]:
    """added_tokens_decoder, {"<id>": {"content": "<text>", ...}}."""
    if not isinstance(value, Mapping) or not all(
        key.isdecimal() and isinstance(entry, Mapping) and isinstance(entry.get("content"), str)
        for key, entry in value.items()
    ):
        raise CheckpointError(
            f'{_DECODER}: expected {{"<token id>": {{"content": "<text>", ...}}, ...}}', source
        )
    return {int(key): _with_flags(entry, special=False) for key, entry in value.items()}


def _values(
    content: Mapping[str, Any], source: Path, *, always_special: bool = False
) -> dict[str, Any]:
    """The keys that name tokens, in the file's order: a token or None each, a list or dict of
    tokens for those that hold several. A text is a special token without flags."""

    def token_of(key: str, value: Any) -> str | Token:
        if isinstance(value, str):
            return value
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise CheckpointError(
                f'{key}: expected the text of a token or {{"content": "<text>", ...}}, got '
                f"{value!r:.80}",
                source,
            )
        # Tokens written by save_pretrained have a type, and complete flags.
        token = _with_flags(value, special="__type" not in value)
        token.special = token.special or always_special
        return token

    values: dict[str, Any] = {}
    for key, value in content.items():
        if key in (_EXTRA, _OLD_EXTRA):
            if isinstance(value, Mapping):
                values[key] = {name: token_of(key, entry) for name, entry in value.items()}
            elif value is None or isinstance(value, list):
                values[key] = [token_of(key, entry) for entry in value or []]
            else:
                raise CheckpointError(f"{key}: expected a list of tokens or a dict", source)
        elif key in _NAMES or (key.endswith("_token") and isinstance(value, (str, Mapping))):
            values[key] = None if value is None else token_of(key, value)
    return values


def _with_flags(entry: Mapping[str, Any], *, special: bool) -> Token:
    flags = {flag: bool(entry[flag]) for flag in _FLAGS if flag in entry}
    return Token(entry["content"], **{"special": special, **flags})
