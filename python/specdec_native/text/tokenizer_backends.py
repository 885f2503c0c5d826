"""The backends of Tokenizer: the `tokenizers` library, or a tokenizer of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from specdec_native.checkpoints.layout import TOKENIZER_MISSING
from specdec_native.text.special_tokens import SpecialTokens, read_special_tokens
from specdec_native.text.token_lengths import TokenLengths, token_lengths
from specdec_native.text.tokenizer_files import check_charsmaps, raise_typed, typed_errors

# Files of tokenizers that only transformers can read.
_OTHER_FORMATS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")

# Tokenizer classes that always normalise; files converted from GGUF may not say so.
_NFC_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")


class TokenizerBackend(Protocol):
    """The interface that a Tokenizer uses."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of every text."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Text of token ids; those outside the vocabulary have none."""

    @property
    def joins_bytes(self) -> bool:
        """Whether decoding joins the bytes of the tokens and does nothing else."""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a vocabulary entry."""

    def special_tokens(self) -> dict[int, str]:
        """Special token id to its text."""

    def vocab(self) -> dict[str, int]:
        """Vocabulary entry to id, added tokens included."""

    def to_json(self) -> str | None:
        """The text of a tokenizer.json; None where the tokenizers library cannot write one."""

    def token_lengths(self) -> TokenLengths | None:
        """How much text tokens may stand for; None where that is not known."""


class TokenizerNotFoundError(ValueError):
    """A checkpoint has no tokenizer that can be read here."""


class _TokenizersBackend:
    """The `tokenizers` library."""

    def __init__(self, tokenizer: Any, source: str | Path = "the tokenizer") -> None:
        self._tokenizer = tokenizer
        self._source = source
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def load(
        cls, file: Path, config: Mapping[str, Any]
    ) -> tuple[_TokenizersBackend, SpecialTokens]:
        check_charsmaps(file)
        with typed_errors(file, "not a readable tokenizer.json"):
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        with typed_errors(file.parent / "tokenizer_config.json", "a special token is refused"):
            special = read_special_tokens(file.parent, config, tokenizer)
            tokenizer.add_tokens(list(special.added))
        tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
        if tokenizer.normalizer is None and config.get("tokenizer_class") in _NFC_CLASSES:
            tokenizer.normalizer = tokenizers.normalizers.NFC()
        return cls(tokenizer, file), special

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        with typed_errors(self._source, "cannot encode this text"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        with typed_errors(self._source, "cannot encode these texts"):
            encodings = self._tokenizer.encode_batch_fast(
                texts, add_special_tokens=add_special_tokens
            )
        return [encoding.ids for encoding in encodings]

    @property
    def joins_bytes(self) -> bool:
        return type(self._tokenizer.decoder) is tokenizers.decoders.ByteLevel

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        try:  # for every token of every request: no context manager
            text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            raise_typed(error, self._source, "cannot decode these tokens")
        return text

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def special_tokens(self) -> dict[int, str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items() if token.special}

    def vocab(self) -> dict[str, int]:
        vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocab

    def to_json(self) -> str | None:
        source: str = self._tokenizer.to_str()
        return source

    def token_lengths(self) -> TokenLengths | None:
        return token_lengths(self._tokenizer)


class _TransformersBackend:
    """A tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        return [self.encode(text, add_special_tokens) for text in texts]

    @property
    def joins_bytes(self) -> bool:
        return False  # not known

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(
            token_ids,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        token_id: int | None = self._tokenizer.convert_tokens_to_ids(token)
        return token_id

    def special_tokens(self) -> dict[int, str]:
        tokenizer = self._tokenizer
        return {i: str(tokenizer.convert_ids_to_tokens(i)) for i in tokenizer.all_special_ids}

    def vocab(self) -> dict[str, int]:
        return dict(self._tokenizer.get_vocab())

    def to_json(self) -> str | None:
        inner = getattr(self._tokenizer, "backend_tokenizer", None)
        return inner.to_str() if isinstance(inner, tokenizers.Tokenizer) else None

    def token_lengths(self) -> TokenLengths | None:
        inner = getattr(self._tokenizer, "backend_tokenizer", None)
        return token_lengths(inner) if isinstance(inner, tokenizers.Tokenizer) else None


def load_backend(file: Path, config: Mapping[str, Any]) -> tuple[TokenizerBackend, SpecialTokens]:
    """Loads a tokenizer.json with the tokens that tokenizer_config.json (`config`) and the files
    beside it add. Returns the backend and the added tokens."""
    return _TokenizersBackend.load(file, config)


def make_backend(tokenizer: Any) -> TokenizerBackend:
    """A `tokenizers.Tokenizer`, or a tokenizer of transformers."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return _TokenizersBackend(tokenizer)
    return _TransformersBackend(tokenizer)


def load_with_transformers(path: Path, trust_remote_code: bool) -> Any:
    """The transformers tokenizer of a checkpoint without tokenizer.json.

    Raises TokenizerNotFoundError where there is no tokenizer, or transformers is not installed.
    """
    if not path.is_dir():
        raise ValueError(f"{path}: not a directory with tokenizer files")
    found = [name for name in _OTHER_FORMATS if (path / name).is_file()]
    if (path / TOKENIZER_MISSING).is_file():
        raise TokenizerNotFoundError((path / TOKENIZER_MISSING).read_text(encoding="utf-8"))
    if not found:
        raise TokenizerNotFoundError(
            f"{path}: tokenizer.json is missing; copy it from the original checkpoint, pass "
            "tokenizer=<directory that has it>, or work with token ids (skip_tokenizer_init=True)"
        )
    try:
        import transformers  # noqa: PLC0415 - optional
    except ImportError as error:
        raise TokenizerNotFoundError(
            f"{path}: tokenizer.json is missing, and reading {found[0]} needs transformers; "
            "install it (pip install transformers) or add tokenizer.json"
        ) from error
    with typed_errors(path, f"transformers cannot read {found[0]}"):
        return transformers.AutoTokenizer.from_pretrained(
            str(path), trust_remote_code=trust_remote_code, local_files_only=True
        )
