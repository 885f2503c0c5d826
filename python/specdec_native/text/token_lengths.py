"""A lower bound of a text's number of tokens, without tokenizing it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from specdec_native.text.token_texts import byte_level_characters

# The largest factor by which a normalizer shortens a text: bytes before / bytes after. Composed
# forms join up to nine bytes into three (Hangul) and write the Kelvin sign's three bytes as one;
# compatibility forms write a mathematical letter's four bytes as one.
_SHORTENING = {
    **{"NFC": 3, "NFD": 3, "NFKC": 4, "NFKD": 4, "Lowercase": 3},
    **{"ByteLevel": 1, "Prepend": 1},
}
# Pre-tokenizers that drop no text.
_KEEPING = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts")
_LONGEST_CHARACTER = 4
_NOT_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))  # bytes that no text has


@dataclasses.dataclass(frozen=True)
class TokenLengths:
    """How much text tokens may stand for.

    Attributes:
        longest: the most bytes of a text that may become one token.
        dropped: bytes that may become no token at all.
        drops_spaces: whether some tokens swallow any number of spaces beside them.
    """

    longest: int
    dropped: bytes = b""
    drops_spaces: bool = False

    def fewest_tokens(self, text: str) -> int:
        """The least number of tokens that the text may become."""
        if self.drops_spaces:
            text = "".join(text.split())
        content = text.encode("utf-8", "surrogatepass").translate(None, self.dropped)
        return -(-len(content) // self.longest)


def token_lengths(tokenizer: tokenizers.Tokenizer) -> TokenLengths | None:
    """The bounds of a tokenizer; None where a part of it may drop arbitrary text."""
    normalizers = list(_parts(tokenizer.normalizer, "normalizers"))
    splitters = list(_parts(tokenizer.pre_tokenizer, "pretokenizers"))
    if not all(_keeps_all(part) for part in splitters):
        return None
    shortening = 1
    for part in normalizers:
        factor = _shortening(part)
        if factor is None:
            return None
        shortening *= factor
    is_byte_level = any(part["type"] == "ByteLevel" for part in (*normalizers, *splitters))
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    dropped = _dropped(tokenizer.model, vocab, is_byte_level=is_byte_level)
    if dropped is None or (dropped and shortening > 1):  # normalizing may produce dropped bytes
        return None
    # A byte-level vocabulary has a character for each byte.
    own = max((len(t if is_byte_level else t.encode()) for t in vocab), default=0)
    added = tokenizer.get_added_tokens_decoder().values()
    longest = max([_LONGEST_CHARACTER, own, *(len(token.content.encode()) for token in added)])
    drops_spaces = any(token.lstrip or token.rstrip for token in added)
    return TokenLengths(longest * shortening, dropped, drops_spaces)


def _parts(component: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, of each one in a sequence."""
    if component is None:
        return
    open_parts = [json.loads(component.__getstate__())]
    while open_parts:
        part = open_parts.pop()
        if part["type"] == "Sequence":
            open_parts += part[key]
        else:
            yield part


def _shortening(normalizer: Mapping[str, Any]) -> int | None:
    """The largest factor by which a normalizer shortens a text; None if unknown."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        is_longer = pattern and len(normalizer["content"].encode()) >= len(pattern.encode())
        return 1 if is_longer else None
    return _SHORTENING.get(normalizer["type"])


def _keeps_all(splitter: Mapping[str, Any]) -> bool:
    if splitter["type"] in ("Split", "Punctuation"):
        return bool(splitter["behavior"] != "Removed")
    return splitter["type"] in _KEEPING


def _dropped(model: Any, vocab: Mapping[str, int], *, is_byte_level: bool) -> bytes | None:
    """Bytes that the model drops or merges into one unknown token; None if that is not known."""
    if not isinstance(model, tokenizers.models.BPE):
        return None
    if model.unk_token is not None and not model.fuse_unk:  # each unknown character is a token
        return b""
    if is_byte_level:
        characters = byte_level_characters().items()
        return bytes(b for char, b in characters if b not in _NOT_UTF8 and char not in vocab)
    has_all = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    return b"" if model.byte_fallback and has_all else None
