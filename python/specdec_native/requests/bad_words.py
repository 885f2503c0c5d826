"""Compiles the bad words of requests into the core's automata."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from specdec_native import _core
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_native.text.tokenizer import Tokenizer

_MAX_KEPT = 16  # automata; each takes up to about 80 bytes per byte of its words
_MAX_KEPT_TEXTS = 4  # lists of what each token of the vocabulary adds to a text
_MAX_BYTES = 1 << 18  # of a request's words


def without_bad_choices(
    params: StructuredOutputsParams, words: Sequence[str]
) -> StructuredOutputsParams:
    """Drops choices that contain a bad word: an answer that begins such a choice has to finish it.

    Raises ValueError where no choice is left.
    """
    if params.choice is None or not words:
        return params
    watched = [_watched(word) for word in words]
    choice = [text for text in params.choice if not any(word in text for word in watched)]
    if not choice:
        raise ValueError("bad_words: each of the texts to choose from holds one of the words")
    return dataclasses.replace(params, choice=choice)


def _watched(word: str) -> str:
    return word.lstrip(" ") or word


class BadWordsCompiler:
    """Makes automata for one tokenizer and keeps the latest. Any thread may call it."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: Sequence[int] = ()
    ) -> None:
        """`end_token_ids` end an answer, unless a request ignores them."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self.texts = functools.lru_cache(_MAX_KEPT_TEXTS)(self._read_texts)  # without hidden tokens
        self._compiled = functools.lru_cache(_MAX_KEPT)(self._compile)

    def compile(self, params: SamplingParams) -> _core.BadWords:
        """The automaton of `params.bad_words` for answer texts that `params` describe.

        As in vLLM, spaces in front of a word do not count. Raises ValueError naming bad_words.
        """
        texts = tuple(_watched(word).encode() for word in params.bad_words or ())
        if (size := sum(map(len, texts))) > _MAX_BYTES:
            raise ValueError(
                f"bad_words: the words have {size} bytes, and {_MAX_BYTES} are the most"
            )
        hidden = {
            *self._tokenizer.hidden_tokens(params.skip_special_tokens, params.shown_special_tokens),
            *self._unshown_ends(params),
        }
        return self._compiled(texts, frozenset(hidden))

    def _unshown_ends(self, params: SamplingParams) -> Sequence[int]:
        """Tokens that may end an answer and are not part of its text."""
        if params.include_stop_str_in_output:
            return ()
        # A grammar ends by an end token in any case.
        ends_by_eos = not params.ignore_eos or params.structured_outputs is not None
        return [*(self._end_token_ids if ends_by_eos else ()), *(params.stop_token_ids or ())]

    def _compile(self, words: tuple[bytes, ...], hidden: frozenset[int]) -> _core.BadWords:
        return _core.BadWords(self.texts(hidden), words)

    def _read_texts(self, hidden: frozenset[int]) -> _core.VocabularyTexts:
        known = min(self._vocab_size, self._tokenizer.vocab_size)
        texts = [
            b"" if token_id in hidden else self._tokenizer.token_bytes(token_id)
            for token_id in range(known)
        ]
        return _core.VocabularyTexts(texts + [b""] * (self._vocab_size - known))
