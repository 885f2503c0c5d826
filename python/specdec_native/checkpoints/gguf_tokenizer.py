"""Rebuilds a `tokenizer.json` from the vocabulary a GGUF file carries.

GGUF files hold tokens and merges (or scores) but only the *name* of the rule that splits text
before merging; the rules themselves are in gguf_splitters. Three kinds of vocabulary are known:

- "gpt2": byte-level BPE with ranked merges;
- "llama": SentencePiece BPE with scores. It merges the neighbours whose union has the best score,
  which is the same as ranked merges made from every way to cut a token into two tokens;
- "gemma4": BPE over the same characters, with ranked merges that the file has.
"""

from __future__ import annotations

import json
import logging
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_splitters import SPLIT_RULES
from specdec_native.checkpoints.layout import TOKENIZER_MISSING

logger = logging.getLogger(__name__)

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece writes a space as this
_NO_LIMIT = 10**30  # what transformers writes for "no limit known"
_ADVICE = "give tokenizer=<a directory with the original model's tokenizer.json>"
# What ends an answer of Gemma 4 besides the end of a turn.
_GEMMA4_ENDS = ("<eos>", "<|tool_response>")


class UnknownTokenizerError(CheckpointError):
    """A kind of vocabulary or a splitting rule that is not known; the weights can be used."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, one for each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def write_tokenizer(file: GgufFile, directory: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja to `directory`.

    A file without a vocabulary gets none of them and a warning. Where the kind of vocabulary or the
    splitting rule is not known, the warning and the reason in TOKENIZER_MISSING stand in for
    tokenizer.json. Raises CheckpointError for other faults.
    """
    original = file.get("tokenizer.huggingface.json", kind=str)
    if original is not None:
        (directory / "tokenizer.json").write_text(str(original), encoding="utf-8")
    elif file.get("tokenizer.ggml.model", kind=str) is None:
        logger.warning("%s holds no tokenizer; only token ids can be given to it", file.path)
        return
    else:
        try:
            build_tokenizer(file).save(str(directory / "tokenizer.json"))
        except UnknownTokenizerError as fault:
            logger.warning("%s", fault)
            (directory / TOKENIZER_MISSING).write_text(str(fault), encoding="utf-8")
    config = _tokenizer_config(file)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
    if "chat_template" in config:
        template = directory / "chat_template.jinja"
        template.write_text(config["chat_template"], encoding="utf-8")


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of a GGUF file, as the `tokenizers` library runs it.

    Raises UnknownTokenizerError, or CheckpointError for a malformed vocabulary.
    """
    model = file.require("tokenizer.ggml.model", str)
    if model not in ("gpt2", "llama", "gemma4"):
        raise UnknownTokenizerError(
            f"tokenizer.ggml.model is {model!r}; supported: gpt2 (byte-level BPE), llama "
            f"(SentencePiece BPE) and gemma4 (with merges); {_ADVICE}",
            file.path,
        )
    vocabulary = _Vocabulary(file)
    if model == "gpt2":
        tokenizer = _byte_level(file, vocabulary)
    elif model == "llama":
        add_prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
        tokenizer = _sentencepiece(vocabulary, vocabulary.merges_by_score(), add_prefix)
    else:
        tokenizer = _sentencepiece(vocabulary, _merges(file, vocabulary.ids()), add_prefix=False)
    controls = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    controls += [
        vocabulary.tokens[token_id]
        for token_id in unnamed_ends(file)
        if vocabulary.types[token_id] == TokenType.NORMAL
    ]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in controls]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False)
            for token in vocabulary.of_type(TokenType.USER_DEFINED)
        ]
    )
    frame = _frame(file, vocabulary)
    if frame is not None:
        tokenizer.post_processor = frame
    return tokenizer


def unnamed_ends(file: GgufFile) -> list[int]:
    """Ids of tokens that end an answer although the metadata names them in no key.

    Files of Gemma 4 name the end of a turn alone, and <eos> is an ordinary token in them.
    """
    if file.get("tokenizer.ggml.model", kind=str) != "gemma4":
        return []
    tokens: list[str] = file.require("tokenizer.ggml.tokens", list[str])
    return [tokens.index(token) for token in _GEMMA4_ENDS if token in tokens]


class _Vocabulary:
    """The parallel lists `tokenizer.ggml.{tokens,token_type,scores}`, checked."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.tokens: list[str] = file.require("tokenizer.ggml.tokens", list[str])
        self.types: list[int] = file.get(
            "tokenizer.ggml.token_type", [TokenType.NORMAL] * len(self.tokens), list[int]
        )
        if len(self.types) != len(self.tokens):
            raise file.error(
                f"tokenizer.ggml.token_type has {len(self.types)} entries for "
                f"{len(self.tokens)} tokens"
            )

    def ids(self) -> dict[str, int]:
        """Token -> id, without the unused tokens that pad the embedding to a round size."""
        return {
            token: i
            for i, (token, token_type) in enumerate(zip(self.tokens, self.types, strict=True))
            if token_type != TokenType.UNUSED
        }

    def of_type(self, *types: TokenType) -> list[str]:
        """The tokens of these types, in the order of their ids."""
        return [
            token
            for token, token_type in zip(self.tokens, self.types, strict=True)
            if token_type in types
        ]

    def special(self, name: str) -> str | None:
        """The text of `tokenizer.ggml.<name>_token_id`; None without one, or of padding."""
        token_id = self.file.get(f"tokenizer.ggml.{name}_token_id", kind=int)
        if token_id is None:
            return None
        if not 0 <= int(token_id) < len(self.tokens):
            raise self.file.error(
                f"tokenizer.ggml.{name}_token_id is {token_id}, outside the "
                f"{len(self.tokens)} tokens"
            )
        is_padding = self.types[int(token_id)] == TokenType.UNUSED
        return None if is_padding else self.tokens[int(token_id)]

    def merges_by_score(self) -> list[tuple[str, str]]:
        """Ranked merges that choose as the scores do.

        Every cut of a token into two is a merge with the token's score; equal scores (the cuts of
        one token among them) are ordered by id and then by the left part's length, longest first.
        Only ordinary tokens take part: the others are matched as a whole or stand for bytes.
        """
        scores: list[float] = self.file.require("tokenizer.ggml.scores", list[float])
        if len(scores) != len(self.tokens):
            raise self.file.error(
                f"tokenizer.ggml.scores has {len(scores)} entries for {len(self.tokens)} tokens"
            )
        ordinary = {
            token: i
            for i, (token, token_type) in enumerate(zip(self.tokens, self.types, strict=True))
            if token_type == TokenType.NORMAL
        }
        ranked = []
        for token, token_id in ordinary.items():
            for cut in range(1, len(token)):
                if token[:cut] in ordinary and token[cut:] in ordinary:
                    ranked.append((-scores[token_id], token_id, -cut, token))
        ranked.sort()
        return [(token[:-minus_cut], token[-minus_cut:]) for _, _, minus_cut, token in ranked]


def _byte_level(file: GgufFile, vocabulary: _Vocabulary) -> Tokenizer:
    name = file.get("tokenizer.ggml.pre", "default")
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise UnknownTokenizerError(
            f"tokenizer.ggml.pre is {name!r}, a splitting rule this package does not know; "
            f"{_ADVICE}. Known: {', '.join(sorted(SPLIT_RULES))}",
            file.path,
        )
    if name == "default":
        logger.warning("%s does not name its splitting rule; GPT-2's is used", file.path)
    ids = vocabulary.ids()
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=_merges(file, ids), ignore_merges=rule.whole_words_first)
    )
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(file: GgufFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    """The ranked merges of a file; CheckpointError for one that is not of tokens."""
    merges = [_two_parts(file, merge) for merge in file.require("tokenizer.ggml.merges", list[str])]
    for left, right in merges:
        if left not in ids or right not in ids or left + right not in ids:
            raise file.error(f"tokenizer.ggml.merges: {left!r} + {right!r} is not made of tokens")
    return merges


def _two_parts(file: GgufFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space or not left or not right or " " in right:
        raise file.error(f"tokenizer.ggml.merges: {merge!r} is not two tokens and a space")
    return left, right


def _sentencepiece(
    vocabulary: _Vocabulary, merges: list[tuple[str, str]], add_prefix: bool
) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids(),
            merges=merges,
            unk_token=_unknown_token(vocabulary),
            fuse_unk=True,
            byte_fallback=TokenType.BYTE in vocabulary.types,
        )
    )
    prefix = [normalizers.Prepend(_SPACE)] if add_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    steps: list[Any] = [
        decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
    ]  # fmt: skip
    if add_prefix:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _unknown_token(vocabulary: _Vocabulary) -> str | None:
    named = vocabulary.special("unknown")
    return named or next(iter(vocabulary.of_type(TokenType.UNKNOWN)), None)


def _frame(file: GgufFile, vocabulary: _Vocabulary) -> Any:
    """The first and last token that the file wants around every text; None for neither."""
    sentencepiece = file.get("tokenizer.ggml.model", kind=str) == "llama"
    rule = SPLIT_RULES.get(file.get("tokenizer.ggml.pre", "default"))
    # Files from before these keys existed rely on what their kind of tokenizer always did.
    begins = sentencepiece or (rule is not None and rule.begins)
    # Some files of Gemma 4 say that a text has no begin token, which llama.cpp overrides, too.
    always_begins = file.get("tokenizer.ggml.model", kind=str) == "gemma4"
    bos = vocabulary.special("bos") if always_begins else _framing_token(vocabulary, "bos", begins)
    eos = _framing_token(vocabulary, "eos", False)
    if bos is None and eos is None:
        return None
    first = [bos] if bos else []
    last = [eos] if eos else []
    tokens = dict.fromkeys(first + last)
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1",
              *(f"{token}:1" for token in last)],
        special_tokens=[(token, vocabulary.tokens.index(token)) for token in tokens],
    )  # fmt: skip


def _framing_token(vocabulary: _Vocabulary, name: str, default: bool) -> str | None:
    wanted = bool(vocabulary.file.get(f"tokenizer.ggml.add_{name}_token", default))
    return vocabulary.special(name) if wanted else None


def _tokenizer_config(file: GgufFile) -> dict[str, Any]:
    vocabulary = _Vocabulary(file)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.hyperparameter("context_length", _NO_LIMIT),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = vocabulary.special(key)
        if token is not None:
            config[f"{name}_token"] = token
    template = file.get("tokenizer.chat_template", kind=str)
    if template is not None:
        config["chat_template"] = str(template)
    return config
