"""Fill-in prompts are those of each family's documentation, as its tokenizer encodes them."""

import dataclasses

import pytest
import tokenizers
from tokenizers import normalizers

from specdec_native.text.infill import FAMILIES, Infiller
from specdec_native.text.tokenizer import Tokenizer
from tiny_tokenizers import byte_level, sentencepiece_like

PREFIX = "the quick brown\n  "
SUFFIX = "\n  world"
NAME, TEXT = "a.py", "fox = 1\n"


@dataclasses.dataclass(frozen=True)
class Documented:
    """What a family's paper, README or model card says.

    Attributes:
        tokens: added tokens of the vocabulary.
        prompt: the prompt for PREFIX and SUFFIX, with what a tokenizer puts before a text as BOS.
        with_file: the prompt with one more file.
        not_ends: tokens that do not end a middle.
        is_sentencepiece: whether the tokenizer puts a space before a text.
    """

    tokens: str
    prompt: str
    with_file: str
    not_ends: str = ""
    is_sentencepiece: bool = False


QWEN = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
STARCODER = f"<fim_prefix>{PREFIX}<fim_suffix>{SUFFIX}<fim_middle>"
IN_PREFIX = f"#{NAME}\n{TEXT}\n{PREFIX}"  # as DeepSeek-Coder tells files apart
DOCUMENTED = {
    "Qwen2.5-Coder": Documented(
        "<|endoftext|> <|im_start|> <|im_end|> <tool_call> <|fim_prefix|> <|fim_middle|> "
        "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>",
        QWEN,
        f"<|repo_name|>project\n<|file_sep|>{NAME}\n{TEXT}<|file_sep|>file\n{QWEN}",
        not_ends="<tool_call>",
    ),
    "CodeGemma": Documented(
        "<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|file_separator|>",
        QWEN,
        f"<|file_separator|>{NAME}\n{TEXT}<|file_separator|>file\n{QWEN}",
    ),
    "Granite 4": Documented(
        "<|end_of_text|> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|filename|> "
        "<|reponame|> <|start_of_role|>",
        QWEN,
        f"<|reponame|>project<|filename|>{NAME}\n{TEXT}<|filename|>file\n{QWEN}",
        not_ends="<|start_of_role|>",
    ),
    "Qwen2.5-Coder's names": Documented(
        "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|python_start|>",
        QWEN,
        QWEN.replace(PREFIX, IN_PREFIX),
        not_ends="<|python_start|>",
    ),
    "StarCoder2": Documented(
        "<|endoftext|> <fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <repo_name> <file_sep> "
        "<issue_start>",
        STARCODER,
        f"<repo_name>project<file_sep>{NAME}\n{TEXT}<file_sep>{STARCODER}",
        not_ends="<issue_start>",
    ),
    "StarCoder, Granite Code": Documented(
        "<|endoftext|> <fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <filename> <gh_stars> "
        "<reponame>",
        STARCODER,
        f"<reponame>project<filename>{NAME}\n{TEXT}<filename>file\n{STARCODER}",
        not_ends="<gh_stars>",
    ),
    "StarCoder's names": Documented(
        "<|endoftext|> <fim_prefix> <fim_middle> <fim_suffix> <fim_pad>",
        STARCODER,
        STARCODER.replace(PREFIX, IN_PREFIX),
    ),
    "SantaCoder": Documented(
        "<|endoftext|> <fim-prefix> <fim-middle> <fim-suffix> <fim-pad>",
        f"<fim-prefix>{PREFIX}<fim-suffix>{SUFFIX}<fim-middle>",
        f"<fim-prefix>{IN_PREFIX}<fim-suffix>{SUFFIX}<fim-middle>",
    ),
    "CodeLlama": Documented(
        "▁<PRE> ▁<MID> ▁<SUF> ▁<EOT>",
        f"<s>▁<PRE> {PREFIX}▁<SUF>{SUFFIX}▁<MID>",
        f"<s>▁<PRE> {IN_PREFIX}▁<SUF>{SUFFIX}▁<MID>",
        is_sentencepiece=True,
    ),
    "DeepSeek-Coder, DeepSeek-V2 and later": Documented(
        "<｜end▁of▁sentence｜> <｜fim▁hole｜> <｜fim▁begin｜> <｜fim▁end｜> <|EOT|> <｜User｜>",
        f"<｜fim▁begin｜>{PREFIX}<｜fim▁hole｜>{SUFFIX}<｜fim▁end｜>",
        f"<｜fim▁begin｜>{IN_PREFIX}<｜fim▁hole｜>{SUFFIX}<｜fim▁end｜>",
        not_ends="<｜User｜>",
    ),
    "Codestral": Documented(
        "[INST] [/INST] [PREFIX] [MIDDLE] [SUFFIX]",
        f"<s>[SUFFIX]{SUFFIX}[PREFIX] {PREFIX}",
        f"<s>[SUFFIX]{SUFFIX}[PREFIX] {IN_PREFIX}",
        not_ends="[INST] [/INST]",
        is_sentencepiece=True,
    ),
    "Seed-Coder": Documented(
        "<[fim-suffix]> <[fim-prefix]> <[fim-middle]>",
        f"<[fim-suffix]>{SUFFIX}<[fim-prefix]>{PREFIX}<[fim-middle]>",
        f"<[fim-suffix]>{SUFFIX}<[fim-prefix]>{IN_PREFIX}<[fim-middle]>",
    ),
}


def tokenizer_of(documented: Documented, *, special: bool) -> tokenizers.Tokenizer:
    """A tiny tokenizer with the family's tokens; checkpoints do not always call them special."""
    tokenizer = sentencepiece_like() if documented.is_sentencepiece else byte_level()
    tokens = [
        tokenizers.AddedToken(text, special=special, normalized=False)
        for text in documented.tokens.split()
    ]
    tokenizer.add_tokens(tokens)
    return tokenizer


def encoded(documented: Documented, text: str) -> list[int]:
    """A documented prompt, in which the spaces before texts are written out."""
    tokenizer = tokenizer_of(documented, special=True)
    if documented.is_sentencepiece:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_the_documented_ones(family: str, special: bool) -> None:
    documented = DOCUMENTED[family]
    tokenizer = Tokenizer.wrap(tokenizer_of(documented, special=special))
    infiller = Infiller(tokenizer)
    prompt = infiller.prompt(PREFIX, SUFFIX)
    assert prompt.token_ids == encoded(documented, documented.prompt)
    with_file = infiller.prompt(PREFIX, SUFFIX, [(NAME, TEXT)])
    assert with_file.token_ids == encoded(documented, documented.with_file)
    ends = set(documented.tokens.split()) - set(documented.not_ends.split())
    assert set(tokenizer.convert_ids_to_tokens(prompt.stop_token_ids)) == ends
    bare = infiller.prompt(PREFIX, SUFFIX, add_special_tokens=False).token_ids
    assert bare == encoded(documented, documented.prompt.removeprefix("<s>"))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_that_spells_tokens_stays_text(family: str, special: bool) -> None:
    documented = DOCUMENTED[family]
    tokenizer = Tokenizer.wrap(tokenizer_of(documented, special=special))
    infiller = Infiller(tokenizer)
    ends = set(documented.tokens.split()) - set(documented.not_ends.split())
    spelled = f"x{' '.join(sorted(ends))} </s><s>y"
    neutral = byte_level()
    if documented.is_sentencepiece:
        neutral = sentencepiece_like()
        neutral.normalizer = normalizers.Replace(" ", "▁")
    neutral.encode_special_tokens = True  # it has no tokens of a family, and <s> is text
    expected = neutral.encode(spelled, add_special_tokens=False).ids
    first = neutral.encode(f" {spelled}", add_special_tokens=False).ids
    empty = infiller.prompt("", "").token_ids
    before, after = infiller.prompt(spelled, "").token_ids, infiller.prompt("", spelled).token_ids
    assert without(before, empty) == (first if documented.is_sentencepiece else expected)
    assert without(after, empty) == expected


def without(token_ids: list[int], marks: list[int]) -> list[int]:
    """The tokens of a prompt between those of an empty one, each of which must be there once."""
    assert all(token_ids.count(mark) == 1 for mark in marks)
    return [token_id for token_id in token_ids if token_id not in marks]


def test_added_tokens_of_other_kinds_are_recognised_in_texts() -> None:
    """As in Gemma's vocabulary, where lines of code begin with them."""
    documented = DOCUMENTED["CodeGemma"]
    tokenizer = tokenizer_of(documented, special=False)
    tokenizer.add_tokens(["\n\n\n"])
    infiller = Infiller(Tokenizer.wrap(tokenizer))
    lines = tokenizer.token_to_id("\n\n\n")
    for prefix in ("a\n\n\nb", "a\n\n\n<|fim_prefix|>"):
        assert lines in infiller.prompt(prefix, "").token_ids


def test_a_vocabulary_without_such_tokens_is_refused() -> None:
    partly = byte_level()
    partly.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "[PREFIX]"])
    for tokenizer in (byte_level(), sentencepiece_like(), partly):
        with pytest.raises(ValueError, match=r"^suffix is not supported by this model.*leave"):
            Infiller(Tokenizer.wrap(tokenizer))
