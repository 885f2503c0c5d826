"""The bytes of tokens, and the text of each token in its context, for logprobs."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

_BYTE_ENTRY = re.compile(r"<0x([0-9A-F]{2})>")  # of vocabularies with byte fallback
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]


def byte_level_characters() -> dict[str, int]:
    """The characters that byte-level vocabularies (as GPT-2's) use for bytes."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    chars = {chr(byte): byte for byte in _PRINTABLE}
    return chars | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES_OF_CHARS = byte_level_characters()


def bytes_of_entry(entry: str, text: str) -> bytes | None:
    """The bytes that a vocabulary entry spells, if they decode to `text`; else None."""
    byte = _BYTE_ENTRY.fullmatch(entry)
    if byte is not None:
        data = bytes.fromhex(byte[1])
    elif entry and all(char in _BYTES_OF_CHARS for char in entry):
        data = bytes(_BYTES_OF_CHARS[char] for char in entry)
    else:
        return None
    # Some decoders strip a space.
    return data if data.decode("utf-8", "replace") in (text, text or " ") else None


class BytesOfTokens(Protocol):
    """The part of a tokenizer that is needed here."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for."""


_MAX_HELD_TOKENS = 3  # one fewer than the four bytes of a UTF-8 character


class TokenTexts:
    """The text that each token adds. A character of several tokens belongs to the last of them;
    the tokens before it add nothing."""

    def __init__(self, tokenizer: BytesOfTokens, before: Sequence[int] = ()) -> None:
        """`before` are the tokens that the text begins with; their last ones matter."""
        self._tokenizer = tokenizer
        self._held = b""  # bytes of an incomplete character
        for token_id in before[-_MAX_HELD_TOKENS:]:
            self.push(token_id)

    def texts(self, token_ids: Iterable[int]) -> list[str]:
        """The text that each of the tokens would add."""
        return [self._added(token_id)[0] for token_id in token_ids]

    def push(self, token_id: int) -> None:
        """Adds a token."""
        _, self._held = self._added(token_id)

    def _added(self, token_id: int) -> tuple[str, bytes]:
        data = self._held + self._tokenizer.token_bytes(token_id)
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        return text, data[num_read:]
