"""bad_words as texts: which tokens may follow, held against the text that a tokenizer makes."""

from typing import Any

import numpy as np
import pytest

from specdec_native import SamplingParams, _core
from specdec_native.requests.bad_words import BadWordsCompiler
from specdec_native.text.detokenizer import TextStream
from specdec_native.text.tokenizer import Tokenizer
from tiny_tokenizers import byte_level, sentencepiece_like

KINDS = {"byte_level": byte_level, "sentencepiece_like": sentencepiece_like}


def allowed_after(grammar: _core.Grammar, ids: list[int]) -> list[bool]:
    matcher = grammar.make_matcher()
    for token_id in ids:
        matcher.advance(token_id)
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return [bool(bit) for bit in bits[: grammar.vocab_size]]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_forbidden_where_the_text_would_have_the_word(kind: str, skip: bool) -> None:
    tokenizer = Tokenizer.wrap(KINDS[kind]())
    words = [" the", "wor", "é 😀", "日", "</s>", "ss", "  "]
    params = SamplingParams(bad_words=words, skip_special_tokens=skip)
    size = tokenizer.vocab_size + 3  # of a model with further rows
    grammar = _core.without(BadWordsCompiler(tokenizer, size).compile(params))
    starts = ["", "th", "a wo", "é ", "straß s", "日", "the", "<", "w</s>or"]
    texts = [word.lstrip(" ") or word for word in words]
    hidden = tokenizer.hidden_tokens(skip)
    prompt = tokenizer.encode("a", add_special_tokens=False)

    def has_bad_word(ids: list[int]) -> bool:
        stream = TextStream(tokenizer, hidden=hidden, context=prompt)
        text = "".join([*map(stream.push, ids), stream.flush()])
        return any(word in text for word in texts)

    num_forbidden = 0
    for start in starts:
        ids = [t for char in start for t in tokenizer.encode(char, add_special_tokens=False)]
        if has_bad_word(ids):
            with pytest.raises(RuntimeError, match="bad_words"):
                allowed_after(grammar, ids)
            continue
        allowed = allowed_after(grammar, ids)
        for token_id in range(size):
            assert allowed[token_id] != has_bad_word([*ids, token_id]), (start, token_id)
            num_forbidden += not allowed[token_id]
    assert num_forbidden >= 10


def test_a_token_that_ends_the_answer_unshown_may_have_any_text() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    size, end = tokenizer.vocab_size, tokenizer.convert_tokens_to_ids("</s>")
    stop = tokenizer.encode("s", add_special_tokens=False)[-1]
    compiler = BadWordsCompiler(tokenizer, size, [end])

    def allows(token_id: int, **fields: Any) -> bool:
        params = SamplingParams(bad_words=["s"], skip_special_tokens=False, **fields)
        return allowed_after(_core.without(compiler.compile(params)), [])[token_id]

    assert allows(end) and not allows(stop)
    assert allows(stop, stop_token_ids=[stop])
    assert not allows(end, ignore_eos=True)
    assert allows(end, ignore_eos=True, structured_outputs={"regex": "a"})
    assert not allows(end, include_stop_str_in_output=True)
    assert not allows(stop, stop_token_ids=[stop], include_stop_str_in_output=True)


def test_bad_words_are_bounded() -> None:
    tokenizer = Tokenizer.wrap(next(iter(KINDS.values()))())
    compiler = BadWordsCompiler(tokenizer, tokenizer.vocab_size)
    with pytest.raises(ValueError, match="bad_words: the words have 300000 bytes, and 262144"):
        compiler.compile(SamplingParams(bad_words=["a" * 150_000, "b" * 150_000]))
    params = SamplingParams(bad_words=["ab"])
    assert compiler.compile(params) is compiler.compile(params.clone())
