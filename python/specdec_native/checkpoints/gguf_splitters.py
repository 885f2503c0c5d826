"""How text is cut into words before merging, by the names that `tokenizer.ggml.pre` has for it.

Files hold only the name of a rule. The regular expressions are those of the tokenizer.json of the
models that the names come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

# Regular expressions that cut text into words, one after another, each match a word of its own.
# "digit" cuts every digit off; "gpt2" is the byte-level splitter's own expression.
_DIGIT = "digit"
_GPT2 = "gpt2"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_MIXED_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_SYMBOLS_AND_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_MINICPM5 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_TEKKEN = rf"{'|'.join(_MIXED_CASE)}|\p{{N}}|{_SYMBOLS_AND_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{'|'.join(f'{word}{_CONTRACTIONS}?' for word in _MIXED_CASE)}|\p{{N}}{{1,3}}"
    rf"|{_SYMBOLS_AND_SLASH}|{_SPACES}"
)
_THREE_DIGITS = r"\p{N}{1,3}"
_THREE_DIGITS_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    _DIGIT,
)
_DEEPSEEK_V3 = (
    _THREE_DIGITS,
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    rf"|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)


@dataclass(frozen=True)
class SplitRule:
    """What a name in `tokenizer.ggml.pre` means."""

    cuts: tuple[str, ...]
    composes: bool = False
    """Characters are composed first, so that both spellings of an accented letter are one token."""

    whole_words_first: bool = False
    """A word that is a token is taken as it is, without asking how merges would have made it."""

    begins: bool = False
    """A text begins with the begin token, unless the file says otherwise."""

    def pre_tokenizer(self) -> Any:
        """The rule as the `tokenizers` library runs it."""
        steps: list[Any] = []
        for cut in self.cuts:
            if cut == _DIGIT:
                steps.append(pre_tokenizers.Digits(individual_digits=True))
            elif cut != _GPT2:
                steps.append(pre_tokenizers.Split(Regex(cut), behavior="isolated"))
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=_GPT2 in self.cuts)
        return pre_tokenizers.Sequence([*steps, by_bytes])


_OF_GPT2 = SplitRule((_GPT2,))
_DIGITS_THEN_GPT2 = SplitRule((_DIGIT, _GPT2))
_OF_QWEN2 = SplitRule((_QWEN2,))
_COMPOSED_QWEN2 = SplitRule((_QWEN2,), composes=True)
_OF_LLAMA3 = SplitRule((_LLAMA3,), whole_words_first=True, begins=True)
_OF_CL100K = SplitRule((_LLAMA3,))
_OF_GLM4 = SplitRule((_LLAMA3,), whole_words_first=True)
_OF_TEKKEN = SplitRule((_TEKKEN,), whole_words_first=True, begins=True)
_OF_GPT4O = SplitRule((_GPT4O,))
_OF_COHERE = SplitRule((_THREE_DIGITS_FROM_THE_RIGHT, _GPT4O))
_OF_DEEPSEEK_V3 = SplitRule(_DEEPSEEK_V3)

SPLIT_RULES = (
    dict.fromkeys(
        ("default", "gpt-2", "phi-2", "olmo", "mellum", "gigachat", "a.x-4.0", "exaone4"), _OF_GPT2
    )
    | dict.fromkeys(
        ("smollm", "starcoder", "refact", "exaone", "codeshell", "minerva-7b", "mellum2"),
        _DIGITS_THEN_GPT2,
    )
    | {"command-r": SplitRule((_DIGIT, _GPT2), composes=True)}
    | dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _COMPOSED_QWEN2)
    | dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "megrez", "kormo"), _OF_QWEN2)
    | {"qwen35": SplitRule((_QWEN35,))}
    | dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _OF_LLAMA3,
    )
    | dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _OF_CL100K)
    | dict.fromkeys(("glm4", "glm5"), _OF_GLM4)
    | {"tekken": _OF_TEKKEN}
    | dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _OF_GPT4O)
    | dict.fromkeys(("tiny_aya", "cohere2moe"), _OF_COHERE)
    | {"deepseek-coder": SplitRule(_DEEPSEEK_CODER)}
    | dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _OF_DEEPSEEK_V3)
    | {"seed-coder": SplitRule((_SEED_CODER,))}
    | {"minicpm5": SplitRule((_THREE_DIGITS, _MINICPM5), whole_words_first=True)}
    | dict.fromkeys(("bailingmoe", "bailingmoe2"), SplitRule((_BAILING,)))
)
"""By the names in `tokenizer.ggml.pre`."""
