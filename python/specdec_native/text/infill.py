"""Prompts that ask a model for the middle of a text.

Models that were trained to fill in a middle mark the texts around it with tokens of their own. Each
family's tokens are known by their names in the vocabulary, so no option says what a model is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_native.text.plain_tokenizer import plain_tokenizer, without_prefix_space

if TYPE_CHECKING:
    from specdec_native.text.tokenizer import Tokenizer

_SPACES = ("▁", "\u0120")  # how vocabularies write a space
_REPOSITORY = "project"  # the name of a repository that has none; families expect one
_FILE = "file\n"  # the same for the name of a file, with the end of its line


@dataclasses.dataclass(frozen=True)
class InfillFamily:
    """The fill-in tokens of a family of models, by their texts.

    Attributes:
        order: the prompt, with PREFIX and SUFFIX for the texts around the middle.
        ends: tokens that end a middle, beside those of the prompt.
        file: the token before each of several files; None where files are told apart by text.
        last_file: the text after that token for the file with the gap.
        repository: the token before the name of the files' repository.
        after_repository: the text after that name.
    """

    order: str
    ends: str = ""
    file: str | None = None
    last_file: str = _FILE
    repository: str | None = None
    after_repository: str = ""

    @property
    def needed(self) -> list[str]:
        """The tokens by which a vocabulary is known to be of this family."""
        texts = [text for text in self.order.split() if text not in ("PREFIX", "SUFFIX")]
        return [*texts, *filter(None, (self.file, self.repository))]


_QWEN_ORDER = "<|fim_prefix|> PREFIX <|fim_suffix|> SUFFIX <|fim_middle|>"
_STARCODER_ORDER = "<fim_prefix> PREFIX <fim_suffix> SUFFIX <fim_middle>"

# By name. A vocabulary is of the first family whose tokens it has.
FAMILIES = {
    "Qwen2.5-Coder": InfillFamily(
        _QWEN_ORDER,
        ends="<|fim_pad|> <|endoftext|> <|im_start|> <|im_end|>",
        file="<|file_sep|>",
        repository="<|repo_name|>",
        after_repository="\n",
    ),
    "CodeGemma": InfillFamily(_QWEN_ORDER, file="<|file_separator|>"),
    "Granite 4": InfillFamily(
        _QWEN_ORDER,
        ends="<|fim_pad|> <|end_of_text|>",
        file="<|filename|>",
        repository="<|reponame|>",
    ),
    "Qwen2.5-Coder's names": InfillFamily(_QWEN_ORDER, ends="<|fim_pad|> <|end_of_text|>"),
    "StarCoder2": InfillFamily(
        _STARCODER_ORDER,
        ends="<fim_pad> <|endoftext|>",
        file="<file_sep>",
        last_file="",
        repository="<repo_name>",
    ),
    "StarCoder, Granite Code": InfillFamily(
        _STARCODER_ORDER,
        ends="<fim_pad> <|endoftext|>",
        file="<filename>",
        repository="<reponame>",
    ),
    "StarCoder's names": InfillFamily(
        _STARCODER_ORDER, ends="<fim_pad> <file_sep> <filename> <|endoftext|>"
    ),
    "SantaCoder": InfillFamily(
        "<fim-prefix> PREFIX <fim-suffix> SUFFIX <fim-middle>", ends="<fim-pad> <|endoftext|>"
    ),
    "CodeLlama": InfillFamily("▁<PRE> PREFIX ▁<SUF> SUFFIX ▁<MID>", ends="▁<EOT>"),
    "DeepSeek-Coder, DeepSeek-V2 and later": InfillFamily(
        "<｜fim▁begin｜> PREFIX <｜fim▁hole｜> SUFFIX <｜fim▁end｜>",
        ends="<｜end▁of▁sentence｜> <|EOT|>",
    ),
    "Codestral": InfillFamily("[SUFFIX] SUFFIX [PREFIX] PREFIX", ends="[MIDDLE]"),
    "Seed-Coder": InfillFamily("<[fim-suffix]> SUFFIX <[fim-prefix]> PREFIX <[fim-middle]>"),
}


class InfillPrompt(NamedTuple):
    """A prompt whose answer is a middle.

    Attributes:
        token_ids: the prompt.
        stop_token_ids: tokens that end the middle, for SamplingParams.
    """

    token_ids: list[int]
    stop_token_ids: list[int]


class Infiller:
    """Writes the prompts of one tokenizer's model. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError, naming `suffix`, where the vocabulary has no family's tokens."""
        vocab = tokenizer.get_vocab()
        family = family_of(vocab)
        if family is None:
            raise ValueError(
                "suffix is not supported by this model: its vocabulary has no tokens to fill in a "
                "middle, such as <|fim_prefix|>; leave suffix out, or take a model such as "
                "Qwen2.5-Coder"
            )
        self._tokenizer = tokenizer
        self._family = family
        tokens = [*family.needed, *family.ends.split()]
        self._marks = {text: vocab[text] for text in tokens if text in vocab}
        self._special_ids = {*self._marks.values(), *tokenizer.all_special_ids}
        text = tokenizer.encode("a", add_special_tokens=False)
        entries = "".join(map(str, tokenizer.convert_ids_to_tokens(text)))
        self._adds_space = entries.startswith(_SPACES)
        whole = tokenizer.encode("a")
        begins = range(len(whole))
        begin = next((i for i in begins if whole[i : i + len(text)] == text), 0)
        self._beginning = whole[:begin]  # such as BOS

    def prompt(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        *,
        add_special_tokens: bool = True,
    ) -> InfillPrompt:
        """The prompt for the text between `prefix` and `suffix`.

        `files` are the names and texts of other files of the repository. Texts that spell special
        or fill-in tokens stay text. With `add_special_tokens` the prompt begins with what the
        tokenizer puts before a text.
        """
        family, marks = self._family, self._marks
        token_ids = [*self._beginning] if add_special_tokens else []
        if files and family.file is None:  # as DeepSeek-Coder was trained
            prefix = "".join(f"#{name}\n{text}\n" for name, text in files) + prefix
        elif files:
            token_ids += self._context(files)
        for part in family.order.split():
            if part == "PREFIX":
                token_ids += self._encode(prefix, begins_text=True)
            elif part == "SUFFIX":
                token_ids += self._encode(suffix)
            else:
                token_ids.append(marks[part])
        return InfillPrompt(token_ids, [*marks.values()])

    def _context(self, files: Sequence[tuple[str, str]]) -> list[int]:
        family, marks = self._family, self._marks
        token_ids = []
        if family.repository is not None:
            name = self._encode(_REPOSITORY + family.after_repository)
            token_ids += [marks[family.repository], *name]
        for text in (*(f"{name}\n{text}" for name, text in files), family.last_file):
            token_ids += [marks[family.file or ""], *self._encode(text)]
        return token_ids

    def _encode(self, text: str, *, begins_text: bool = False) -> list[int]:
        """Token ids of a piece of text. Where the tokenizer puts a space before a text, that is
        done if `begins_text`."""
        if not self._adds_space:
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            if self._special_ids.isdisjoint(token_ids):
                return token_ids
        elif begins_text and text:
            text = f" {text}"
        plain_ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return plain_ids

    @functools.cached_property
    def _plain(self) -> Any:
        """A second tokenizer, which takes time and memory: most prompts do without."""
        source = self._tokenizer.to_json()
        if source is None:
            raise ValueError(
                "suffix needs a tokenizer that the tokenizers library reads (tokenizer.json)"
            )
        return plain_tokenizer(without_prefix_space(source), self._marks)


def family_of(vocab: Mapping[str, int]) -> InfillFamily | None:
    """The family whose tokens a vocabulary has; None if there is none."""
    for family in FAMILIES.values():
        if all(text in vocab for text in family.needed):
            return family
    return None
