"""Tokenizer, chat templates, detokenisation and stop strings."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.text.chat_template import check_all_shown, render
from specdec_native.text.detokenizer import Detokenizer, TextStream
from specdec_native.text.stop_strings import StopMatcher, StopStrings
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_backends import TokenizerNotFoundError
from tiny_tokenizers import CORPUS, byte_level, sentencepiece_like

KINDS = {"byte_level": byte_level, "sentencepiece_like": sentencepiece_like}


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.wrap(KINDS[request.param]())


def pieces_of(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


# -- detokenisation

TEXTS = [
    "the world",
    "日本語 straße 😀🎉",
    " leading  spaces ",
    "a\nb\n\nc",
    "ünïcödé 🧑‍🚀 the end",
]


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


# -- how many tokens a text has at least


def made(
    make: Callable[[], tokenizers.Tokenizer], added: str = "", *, strips: bool = False, **parts: Any
) -> tokenizers.Tokenizer:
    tokenizer = make()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    if added:
        tokenizer.add_tokens([tokenizers.AddedToken(added, lstrip=strips, rstrip=strips)])
    return tokenizer


def ascii_only(unk_token: str | None = None, *, fuse_unk: bool = False) -> tokenizers.Tokenizer:
    """Byte-level, without most of the bytes."""
    vocab = {token: i for i, token in enumerate(["?", *"abcdefgh", "ab", "\u0120"])}
    model = models.BPE(vocab, [("a", "b")], unk_token=unk_token, fuse_unk=fuse_unk)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


BOUNDED = {
    "byte_level": byte_level(),
    "sentencepiece_like": sentencepiece_like(),
    "long token": made(byte_level, "the longest of all the tokens"),
    "swallows spaces": made(byte_level, "<|end|>", strips=True),
    "composes": made(byte_level, normalizer=normalizers.NFC()),
    "compatible": made(
        byte_level, normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "drops bytes": ascii_only(),
    "unknown bytes": ascii_only("?"),
    "joins unknown bytes": ascii_only("?", fuse_unk=True),
}
UNBOUNDED = {
    "strips": made(byte_level, normalizer=normalizers.Strip()),
    "strips inside": made(
        byte_level, normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    ),
    "replaces": made(byte_level, normalizer=normalizers.Replace("aa", "b")),
    "replaces a pattern": made(
        byte_level, normalizer=normalizers.Replace(tokenizers.Regex("a+"), "b")
    ),
    "splits at spaces": made(byte_level, pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "removes": made(byte_level, pre_tokenizer=pre_tokenizers.Split("a", "removed")),
    "words": tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")),
    "composes what it drops": made(ascii_only, normalizer=normalizers.NFC()),
}
PIECES = (
    *(
        "a",
        "b",
        " ",
        "\n",
        "the world",
        "<|end|>",
        "   ",
        "\u2003",
        "\x04",
        "\x00",
        "\u00e9",
        "e\u0301",
    ),
    *(
        "\u1112\u1161\u11ab",
        "\u212a",
        "\U0001d400",
        "\U0001d7ce",
        "\uff21",
        "\U0001f600",
        "\U00040000",
    ),
    *("\u65e5", "\u0dd9\u0dcf\u0dca", "the longest of all the tokens", "<s>"),
)


@pytest.mark.parametrize("kind", BOUNDED)
def test_a_text_has_at_least_so_many_tokens(kind: str) -> None:
    tokenizer, rng = Tokenizer.wrap(BOUNDED[kind]), random.Random(3)
    texts = [piece * 40 for piece in PIECES]
    texts += ["".join(rng.choices(PIECES, k=rng.randrange(60))) for _ in range(200)]
    bounds = [tokenizer.fewest_tokens(text) for text in texts]
    counts = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    assert [c for b, c in zip(bounds, counts, strict=True) if b > c] == []
    assert max(bounds) > 3


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_a_tokenizer_that_may_drop_text_has_no_bound(kind: str) -> None:
    assert Tokenizer.wrap(UNBOUNDED[kind]).fewest_tokens("ab" * 9999) == 0


def test_the_longest_token_is_the_bound() -> None:
    tokenizer = Tokenizer.wrap(BOUNDED["long token"])
    text = "the longest of all the tokens" * 50
    assert tokenizer.fewest_tokens(text) == len(tokenizer.encode(text)) == 50


# -- tokenizer files


def save(tokenizer: tokenizers.Tokenizer, directory: Path, **config: Any) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_special_tokens_come_from_the_tokenizers_own_rules(tmp_path: Path) -> None:
    saved = save(sentencepiece_like(), tmp_path, eos_token={"content": "</s>"}, bos_token="<s>")
    tokenizer = Tokenizer.from_directory(saved)
    assert tokenizer.encode("the")[0] == tokenizer.bos_token_id == 1
    assert tokenizer.encode("the", add_special_tokens=False)[0] != 1
    assert tokenizer.eos_token_id == 2
    assert tokenizer.encode_batch(["the", "world"]) == [
        tokenizer.encode("the"),
        tokenizer.encode("world"),
    ]


def test_truncation_set_in_the_file_is_ignored(tmp_path: Path) -> None:
    raw = byte_level()
    raw.enable_truncation(2)
    raw.enable_padding(length=50)
    tokenizer = Tokenizer.from_directory(save(raw, tmp_path))
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_a_missing_tokenizer_names_the_file_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match="tokenizer.json is missing.*tokenizer="):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    save(byte_level(), tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(ValueError, match=name):
        Tokenizer.from_directory(tmp_path)


def test_other_formats_are_read_through_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    byte_level().model.save(str(tmp_path))  # vocab.json and merges.txt
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "unk_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(tmp_path)
    ids = tokenizer.encode("hello wörld")
    assert ids == byte_level().encode("hello wörld").ids
    assert "".join(pieces_of(TextStream(tokenizer), ids)) == "hello wörld"
    assert tokenizer.eos_token_id == 1


NEW_TOKENS = ["<|new|>", "<|other|>", "<|im_start|>", "<plain>", "<image>", "[X]", "hello", "the"]
SPEECH = "hello the<|new|>a <|new|> b<|other|><|im_start|>user <plain> the<image>[X]hello</s> [PAD]"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def random_tokens(directory: Path, rng: random.Random) -> None:
    """A folder that names tokens in some of the places where transformers looks for them."""

    typed_texts = set()

    def some(share: float = 0.5) -> bool:
        return rng.random() < share

    def token(typed: bool, text: str = "") -> Any:
        text = text or rng.choice([*NEW_TOKENS, "</s>", "<s>"])
        if some():
            return text
        flags = {"content": text} | {flag: some(0.2) for flag in FLAGS}
        if not typed:
            return flags
        typed_texts.add(text)
        return {"__type": "AddedToken", **flags, "special": some(0.8)}

    def tokens(typed: bool) -> list[Any]:
        return [token(typed) for _ in range(rng.randrange(4))]

    raw = byte_level()
    for text in rng.sample(NEW_TOKENS, rng.randrange(4)):
        flags = {flag: some(0.2) for flag in FLAGS}
        raw.add_tokens([tokenizers.AddedToken(text, special=some(), **flags)])
    if some(0.2):
        raw.enable_padding(pad_token="[PAD]")
    size = raw.get_vocab_size()
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    names = ["eos_token", "bos_token", "pad_token", "unk_token", "image_token"]
    for name in names:
        if some(0.4):
            config[name] = token(typed=True) if some(0.9) else None
    if some():
        config["additional_special_tokens"] = tokens(typed=True)
    if some(0.3):
        config["extra_special_tokens"] = (
            tokens(typed=True) if some() else {"audio_token": token(typed=True)}
        )
    if some():
        texts = rng.sample(NEW_TOKENS, rng.randrange(4))
        ids = [raw.token_to_id(text) or size + i for i, text in enumerate(texts)]
        config["added_tokens_decoder"] = {
            str(i): {"content": text, "special": some(), **{flag: some(0.2) for flag in FLAGS}}
            for i, text in zip(ids, texts, strict=True)
        }
    if some():
        stated: dict[str, Any] = {name: token(typed=False) for name in names if some(0.4)}
        if some():
            stated["additional_special_tokens"] = [t for t in tokens(True) if isinstance(t, str)]
        if some(0.3):
            stated["extra_special_tokens"] = tokens(typed=False)
        write_json(directory / "special_tokens_map.json", stated)
    if some():
        # transformers overlooks that tokenizer_config.json makes one of these special with a type.
        texts = [t for t in rng.sample(NEW_TOKENS, rng.randrange(4)) if t not in typed_texts]
        write_json(directory / "added_tokens.json", {t: size + i for i, t in enumerate(texts)})
    save(raw, directory, **config)


@pytest.mark.parametrize("seed", range(60))
def test_special_tokens_are_those_of_transformers_wherever_they_are_named(
    seed: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    random_tokens(tmp_path, random.Random(seed))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_directory(tmp_path)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    ids = ours.encode(SPEECH)
    assert ids == theirs.encode(SPEECH)
    for every in (ids, list(range(len(theirs)))):
        assert ours.decode(every, skip_special_tokens=True) == theirs.decode(
            every, skip_special_tokens=True
        )
    for name in ("eos", "bos", "pad"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"additional_special_tokens": ["<|new|>"]}},
        {"tokenizer_config": {"extra_special_tokens": {"new_token": "<|new|>"}}},
        {"tokenizer_config": {"eos_token": "<|new|>"}},
        {"tokenizer_config": {"pad_token": {"content": "<|new|>"}}},
        {"special_tokens_map": {"unk_token": "<|new|>"}},
        # transformers 5 refuses dicts here, and 4 took them.
        {"special_tokens_map": {"additional_special_tokens": [{"content": "<|new|>"}]}},
        {
            "added_tokens": {"<|new|>": 330},
            "special_tokens_map": {"eos_token": {"content": "<|new|>", "lstrip": False}},
        },
    ],
)
def test_a_token_that_a_file_names_is_one_id_and_no_text(
    files: dict[str, Any], tmp_path: Path
) -> None:
    save(byte_level(), tmp_path)
    for name, content in files.items():
        write_json(tmp_path / f"{name}.json", content)
    tokenizer = Tokenizer.from_directory(tmp_path)
    ids = tokenizer.encode("the<|new|>world")
    assert ids.count(byte_level().get_vocab_size()) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "theworld"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", {"eos_token": 3}, "tokenizer_config.json: eos_token: expected"),
        ("tokenizer_config", {"extra_special_tokens": "x"}, "extra_special_tokens: expected"),
        ("tokenizer_config", {"extra_special_tokens": [{}]}, "extra_special_tokens: expected"),
        ("special_tokens_map", {"pad_token": []}, "special_tokens_map.json: pad_token: expected"),
        ("tokenizer_config", {"eos_token": "\ud800"}, "a special token is refused"),
        ("added_tokens", {"<a>": "x"}, "added_tokens.json: '<a>': expected"),
    ],
)
def test_tokens_that_are_none_are_refused(
    name: str, content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save(byte_level(), tmp_path)
    write_json(tmp_path / f"{name}.json", content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.models
def test_encoding_and_chat_equal_transformers(smollm2: Path, prompts: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    ours = Tokenizer.from_directory(smollm2)
    for prompt in [*prompts, *TEXTS, "<|im_start|>user\nhi<|im_end|>"]:
        assert ours.encode(prompt) == theirs.encode(prompt)
        conversation = [{"role": "user", "content": prompt}]
        for add in (True, False):
            for tokenize in (True, False):
                options: dict[str, Any] = {"add_generation_prompt": add, "tokenize": tokenize}
                assert ours.apply_chat_template(
                    conversation, **options
                ) == theirs.apply_chat_template(conversation, return_dict=False, **options)


# -- chat templates

TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("no such role: " + message.role) }}
    {%- endif %}
    {{- "<" + message.role + ">" + message.content + eos_token }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}
"""
HELLO = [{"role": "user", "content": "<hello> & 'ü'"}]
VARIABLES = {"eos_token": "</s>"}


def test_a_conversation_is_rendered() -> None:
    assert render(TEMPLATE, HELLO, variables=VARIABLES) == "<user><hello> & 'ü'</s><assistant>"
    assert render(TEMPLATE, HELLO, add_generation_prompt=False, variables=VARIABLES) == (
        "<user><hello> & 'ü'</s>"
    )


def test_tools_are_written_as_plain_json() -> None:
    text = render(TEMPLATE, HELLO, tools=[{"name": "<ü>"}], variables=VARIABLES)
    assert '[{"name": "<ü>"}]' in text


def test_the_final_message_can_be_continued() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I think "}]
    options: dict[str, Any] = {"add_generation_prompt": False, "variables": VARIABLES}
    text = render(TEMPLATE, messages, continue_final_message=True, **options)
    assert text.endswith("<assistant>I think ")
    with pytest.raises(ValueError, match="exclude each other"):
        render(TEMPLATE, messages, continue_final_message=True, variables=VARIABLES)


def test_text_parts_are_joined() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]
    assert "<user>a\nb</s>" in render(TEMPLATE, messages, variables=VARIABLES)


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (TEMPLATE, [], "empty"),
        (TEMPLATE, [{"content": "x"}], "role"),
        (TEMPLATE, ["x"], r"messages\[0\]"),
        (TEMPLATE, [{"role": "user", "content": [{"type": "image"}]}], "text"),
        (TEMPLATE, [{"role": "user", "content": 3}], "content"),
        (TEMPLATE, [{"role": "robot", "content": "x"}], "no such role: robot"),
        ("{% if %}", HELLO, "not valid Jinja"),
        ("{{ messages.__class__.__mro__ }}", HELLO, "chat template"),
    ],
)
def test_what_cannot_be_rendered_is_refused(
    template: str, messages: list[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        render(template, messages, variables=VARIABLES)


CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"},
    {"role": "tool", "content": '{"a": "\u00e9"}'},
    {"role": "assistant", "content": "<think>so</think>\n\nyes"},
    {"role": "user", "content": ""},
]
ALL_SHOWN = (
    "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}",
    "{{ messages | tojson(ensure_ascii=true) }}",
    "{{ messages | map(attribute='content') | join | upper }}",
    # System text within the first question, thoughts cut off, calls in place of content.
    "{% set system = messages[0].content | trim %}{% for m in messages[1:] %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% else %}"
    "{{ m.content.split('</think>')[-1].lstrip() }}{{ system if loop.first }}{% endif %}"
    "{% endfor %}",
    "{% for m in messages %}{{ m.role }}{{ m.content[:4] }}{% endfor %}",
    "{% for m in messages %}{{ m.content | length }} {% endfor %}",
    "{% for m in messages %}{% if '17' in m.content %}{{ raise_exception('') }}{% endif %}"
    "{{ m.content }}{% endfor %}",
)


@pytest.mark.parametrize("template", ALL_SHOWN)
def test_messages_that_a_template_changes_are_shown(template: str) -> None:
    check_all_shown(template, CONVERSATION)


@pytest.mark.parametrize(
    ("template", "index"),
    [
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", 0),
        ("{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}", 3),
        ("{% for m in messages if not m.tool_calls %}{{ m.content }}{% endfor %}", 2),
        ("{{ messages[0].content }}{{ messages[-1].content }}", 1),
        ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", 5),
        ("{{ messages | length }}", 0),
        ("nothing, be brief", 0),
    ],
)
def test_a_message_that_a_template_leaves_out_is_named(template: str, index: int) -> None:
    render(template, CONVERSATION)
    with pytest.raises(ValueError, match=rf"^messages\[{index}\]: the chat template does not show"):
        check_all_shown(template, CONVERSATION)


def test_calls_of_others_than_the_assistant_are_passed_over() -> None:
    message = {"role": "user", "content": "hello", "tool_calls": [[1, 2], "a"]}
    check_all_shown("{% for m in messages %}{{ m.content }}{% endfor %}", [message])


def test_developers_are_the_system_where_a_template_knows_none() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render(TEMPLATE, messages, variables=VARIABLES) == "<system>x</s><assistant>"
    assert render("{{ messages[0].role }}{# or developer #}", messages) == "developer"
    assert messages[0]["role"] == "developer"


def test_template_files_take_precedence_over_the_config(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, chat_template="from config", eos_token="</s>")
    assert Tokenizer.from_directory(tmp_path).chat_template == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file {{ eos_token }}")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.apply_chat_template(HELLO, tokenize=False) == "from file </s>"
    given = Tokenizer.from_directory(tmp_path, chat_template="given {{ messages[0].content }}")
    both = given.apply_chat_template([HELLO, HELLO], tokenize=False)
    assert both == ["given <hello> & 'ü'"] * 2


def test_a_template_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "T"}]
    tokenizer = Tokenizer.from_directory(save(byte_level(), tmp_path, chat_template=templates))
    assert tokenizer.render_chat(HELLO) == "plain"
    assert tokenizer.render_chat(HELLO, tools=[{"name": "f"}]) == "T"


def test_of_several_templates_without_a_default_one_is_chosen_by_its_name(tmp_path: Path) -> None:
    templates = [{"name": "rag", "template": "R{{ 1 }}"}, {"name": "chat", "template": "C{{ 2 }}"}]
    save(byte_level(), tmp_path, chat_template=templates)
    tokenizer = Tokenizer.from_directory(tmp_path)
    with pytest.raises(ValueError, match=r'several chat templates, chat, rag,.*template="chat"'):
        tokenizer.render_chat(HELLO)
    assert tokenizer.render_chat(HELLO, chat_template="rag") == "R1"
    assert Tokenizer.from_directory(tmp_path, chat_template="rag").render_chat(HELLO) == "R1"
    with pytest.raises(ValueError, match="'ragg' is neither Jinja source nor one of.*: chat, rag"):
        tokenizer.render_chat(HELLO, chat_template="ragg")
    with pytest.raises(ValueError, match="neither a file nor Jinja source nor one.*: chat, rag"):
        Tokenizer.from_directory(tmp_path, chat_template="ragg")


def test_the_only_template_needs_no_name(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, chat_template=[{"name": "rag", "template": "R"}])
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.render_chat(HELLO) == tokenizer.chat_template == "R"


def test_without_a_template_the_error_says_what_to_do(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(byte_level(), tmp_path))
    with pytest.raises(ValueError, match="no chat template; pass chat_template"):
        tokenizer.apply_chat_template(HELLO)
