"""Attributes of a tokenizer that name its special tokens."""

from __future__ import annotations

from typing import Any, Protocol


class NamesSpecialTokens(Protocol):
    """A tokenizer that has such attributes."""

    special_tokens_map: dict[str, str]

    def convert_tokens_to_ids(self, tokens: str) -> Any:
        """The id of a vocabulary entry."""

    def convert_ids_to_tokens(self, token_ids: int) -> Any:
        """The vocabulary entry of a token id."""


class SpecialToken:
    """`eos_token` and its like: the text of a special token, None without one. May be set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tokenizer: NamesSpecialTokens, owner: type | None = None) -> str | None:
        return tokenizer.special_tokens_map.get(self._name)

    def __set__(self, tokenizer: NamesSpecialTokens, token: str | None) -> None:
        tokenizer.special_tokens_map.pop(self._name, None)
        if token is not None:
            tokenizer.special_tokens_map[self._name] = token


class SpecialTokenId:
    """`eos_token_id` and its like: the id of a special token, None without one. May be set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._token = name.removesuffix("_id")

    def __get__(self, tokenizer: NamesSpecialTokens, owner: type | None = None) -> int | None:
        token = tokenizer.special_tokens_map.get(self._token)
        token_id: int | None = None if token is None else tokenizer.convert_tokens_to_ids(token)
        return token_id

    def __set__(self, tokenizer: NamesSpecialTokens, token_id: int | None) -> None:
        token = None if token_id is None else tokenizer.convert_ids_to_tokens(token_id)
        setattr(tokenizer, self._token, token)
