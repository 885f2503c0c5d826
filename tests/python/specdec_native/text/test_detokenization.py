"""Text of tokens as they come, and stop strings."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from specdec_native.text.detokenizer import Detokenizer, TextStream
from specdec_native.text.stop_strings import StopMatcher, StopStrings
from specdec_native.text.tokenizer import Tokenizer
from tiny_tokenizers import CORPUS, TEXTS, byte_level, pieces_of, sentencepiece_like

KINDS = {"byte_level": byte_level, "sentencepiece_like": sentencepiece_like}


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.wrap(KINDS[request.param]())


# -- detokenisation


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_pieces_add_up_to_the_text_decoded_at_once(
    tokenizer: Tokenizer, text: str, skip: bool
) -> None:
    ids = tokenizer.encode(text)
    ids = [*ids, 2, *ids, 2]  # special tokens inside and at the end
    pieces = pieces_of(TextStream(tokenizer, hidden=tokenizer.hidden_tokens(skip)), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert not any("\ufffd" in piece for piece in pieces)


def ends_in_half(text: str, tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether bytes that may follow turn the text's end into a character."""
    x80, xa0 = tokenizer.convert_tokens_to_ids(["\u0122", "\u0142"])
    return text.endswith("\ufffd") and any(
        not tokenizer.decode([*ids, first, *[x80] * further], True).endswith("\ufffd")
        for first in (x80, xa0)
        for further in range(3)
    )


def test_hidden_tokens_are_left_out_wherever_they_stand(tokenizer: Tokenizer) -> None:
    left_out, shown, *_ = tokenizer.all_special_ids
    pieces = tokenizer.encode("a 😀 b", add_special_tokens=False)
    ids = [token for piece in pieces for token in (left_out, piece, shown)]
    hidden = tokenizer.hidden_tokens(True, {tokenizer.special_token_texts[shown]})
    expected = tokenizer.decode([token for token in ids if token != left_out])
    assert "".join(pieces_of(TextStream(tokenizer, hidden=hidden), ids)) == expected


def test_any_byte_level_tokens_add_up_to_the_text_decoded_at_once() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    rng = random.Random(1)
    num_cut = 0
    for _ in range(300):
        ids = [rng.randrange(3, tokenizer.vocab_size + 5) for _ in range(rng.randrange(1, 30))]
        text = tokenizer.decode(ids, True)
        if ends_in_half(text, tokenizer, ids):
            num_cut += 1
            text = text.rstrip("\ufffd")
        assert "".join(pieces_of(TextStream(tokenizer), ids)) == text
    assert num_cut > 20


def test_half_a_character_is_never_emitted(tokenizer: Tokenizer) -> None:
    """Not at the end either; a whole replacement character is."""
    face = tokenizer.encode("😀", add_special_tokens=False)[-4:]
    for size in range(1, len(face)):
        assert "".join(pieces_of(TextStream(tokenizer), face[:size])) == ""
        before = tokenizer.encode("the end😀", add_special_tokens=False)
        assert "".join(pieces_of(TextStream(tokenizer), before + face[:size])) == "the end😀"
    assert pieces_of(TextStream(tokenizer), face)[-2] == "😀"
    whole = tokenizer.encode("the \ufffd", add_special_tokens=False)
    assert "".join(pieces_of(TextStream(tokenizer), whole)) == "the \ufffd"


def test_text_continues_the_prompt() -> None:
    """A word after a prompt keeps its space, which a decoder would strip from a text of its own."""
    tokenizer = Tokenizer.wrap(sentencepiece_like())
    prompt = tokenizer.encode("the")
    output = tokenizer.encode("world", add_special_tokens=False)
    hidden = tokenizer.hidden_tokens(True)
    assert "".join(pieces_of(TextStream(tokenizer), output)) == "world"
    assert (
        "".join(pieces_of(TextStream(tokenizer, hidden=hidden, context=prompt), output)) == " world"
    )
    only_special = TextStream(tokenizer, hidden=hidden, context=[1] * 20)
    assert "".join(pieces_of(only_special, output)) == "world"


@pytest.mark.parametrize("text", TEXTS)
def test_prompt_and_text_add_up_wherever_the_prompt_ends(tokenizer: Tokenizer, text: str) -> None:
    """Also inside a character, which then belongs to the text."""
    ids = tokenizer.encode(text)
    for end in range(1, len(ids)):
        prompt = next(
            decoded
            for i in range(end, -1, -1)
            if not (decoded := tokenizer.decode(ids[:i], True)).endswith("\ufffd")
        )
        hidden = tokenizer.hidden_tokens(True)
        pieces = pieces_of(TextStream(tokenizer, hidden=hidden, context=ids[:end]), ids[end:])
        assert prompt + "".join(pieces) == tokenizer.decode(ids, True)


# -- stop strings


def run_detokenizer(
    tokenizer: Tokenizer, ids: Sequence[int], step: int, **options: Any
) -> tuple[str, str | None, int]:
    """Text, stop string and number of tokens kept when `step` tokens arrive at once."""
    detokenizer = Detokenizer(TextStream(tokenizer), **options)
    kept = 0
    for i in range(0, len(ids), step):
        part = ids[i : i + step]
        kept += detokenizer.extend(part)
        if detokenizer.stop_string is not None:
            break
    detokenizer.finish()
    return detokenizer.text, detokenizer.stop_string, kept


@pytest.mark.parametrize(
    ("stop", "text", "ended_by"),
    [
        (["world"], "hello ", "world"),
        (["o w"], "hell", "o w"),
        (["fox", "quick"], "hello world, the ", "quick"),
        (["lo wor", "ello"], "h", "ello"),  # ends first, though it begins later in the list
        (["never"], "hello world, the quick brown fox", None),
        (["fox"], "hello world, the quick brown ", "fox"),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_output_is_cut_at_the_stop_string_that_completes_first(
    stop: list[str], text: str, ended_by: str | None, step: int
) -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    ids = tokenizer.encode(CORPUS[0])
    one_by_one = run_detokenizer(tokenizer, ids, 1, stop=stop)
    assert run_detokenizer(tokenizer, ids, step, stop=stop) == one_by_one
    assert one_by_one[:2] == (text, ended_by)
    included = run_detokenizer(tokenizer, ids, step, stop=stop, include_stop_str_in_output=True)
    assert included == (text + (ended_by or ""), ended_by, one_by_one[2])
    # The tokens kept are the fewest whose text holds the stop string.
    if ended_by is not None:
        kept = one_by_one[2]
        assert ended_by in tokenizer.decode(ids[:kept])
        assert ended_by not in tokenizer.decode(ids[: kept - 1])


@pytest.mark.parametrize("alphabet", ["ab", "abc"])
def test_stop_strings_are_found_as_by_looking_for_each(alphabet: str) -> None:
    draw = random.Random(alphabet)
    for _ in range(500):
        stops = [
            "".join(draw.choices("ab", k=draw.randint(1, 7))) for _ in range(draw.randint(1, 6))
        ]
        text = "".join(draw.choices(alphabet, k=40))
        matcher = StopMatcher(StopStrings(stops))
        for end in range(1, len(text) + 1):
            found = [stop for stop in stops if text[:end].endswith(stop)]
            assert matcher.push(text[end - 1]) == (found[0] if found else None)
            begun = [
                size
                for stop in stops
                for size in range(len(stop))
                if text[:end].endswith(stop[:size])
            ]
            assert matcher.num_begun == max(begun)


def test_stop_strings_cost_no_more_where_there_are_many_long_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In new states of the automaton, the only ones that look into the strings."""
    num_looks = 0
    make_child = StopStrings._make_child

    def counted(*args: Any) -> Any:
        nonlocal num_looks
        num_looks += 1
        return make_child(*args)

    monkeypatch.setattr(StopStrings, "_make_child", counted)
    text = "ab" * 500 + "a" * 1000
    costs = []
    for count in (2, 40, 1000):
        matcher = StopMatcher(StopStrings("ab" * (i + 1000) + f"!{i}" for i in range(count)))
        num_looks = 0
        assert not any(matcher.push(char) for char in text)
        costs.append(num_looks)
    assert max(costs) <= 3 * len(text)


def test_many_ends_of_one_text_are_stop_strings() -> None:
    """A state's fallbacks may be as many as it has characters."""
    matcher = StopMatcher(StopStrings("a" * i + "b" for i in range(2, 3000)))
    assert not any(matcher.push(char) for char in "a" * 3500 + "c" + "a" * 4000)
    assert matcher.push("b") == "aab"


@pytest.mark.parametrize("step", [1, 3, 100])
def test_min_tokens_delays_stop_strings(step: int) -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    ids = tokenizer.encode("the the the the")
    first = run_detokenizer(tokenizer, ids, step, stop=["the"])
    assert first[0] == ""
    text, stop, kept = run_detokenizer(tokenizer, ids, step, stop=["the"], min_tokens=first[2])
    assert (text, stop) == ("the ", "the")
    assert kept > first[2]


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    detokenizer = Detokenizer(TextStream(tokenizer), stop=["<end>", "<stop>"])
    shown = []
    for token_id in tokenizer.encode("a<e b<end>"):
        detokenizer.extend([token_id])
        shown.append(detokenizer.text[: detokenizer.num_certain_chars()])
    assert all("a<e b".startswith(text) for text in shown)
    assert "a" in shown and "a<" not in shown and "a<e b" in shown
    assert detokenizer.stop_string == "<end>" and detokenizer.text == "a<e b"


def test_what_was_held_back_appears_at_the_end() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    detokenizer = Detokenizer(TextStream(tokenizer), stop=["<end>"])
    detokenizer.extend(tokenizer.encode("a<en"))
    assert detokenizer.text[: detokenizer.num_certain_chars()] == "a"
    detokenizer.finish()
    assert detokenizer.text[: detokenizer.num_certain_chars()] == "a<en"


def test_a_stop_token_has_no_text_unless_asked_for() -> None:
    tokenizer = Tokenizer.wrap(byte_level())
    ids = tokenizer.encode("hello world")
    for include, text in ((False, tokenizer.decode(ids[:-1])), (True, "hello world")):
        detokenizer = Detokenizer(TextStream(tokenizer), include_stop_str_in_output=include)
        assert detokenizer.extend(ids, stop_token_last=True) == len(ids)
        detokenizer.finish()
        assert detokenizer.text == text
