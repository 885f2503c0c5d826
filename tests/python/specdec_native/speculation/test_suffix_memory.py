"""What suffix decoding drafts from beside a request's own text: a corpus, a store, salts."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdec_native import Engine, SamplingParams
from specdec_native.requests.inputs import TextPrompt
from specdec_native.requests.outputs import SpeculativeDecodingMetrics
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS, only

PROMPT = "to be or not"
PARAMS = SamplingParams(
    temperature=1, seed=7, max_tokens=40, ignore_eos=True, allowed_token_ids=TEXT_TOKEN_IDS
)


def engine_of(model: Path, **config: Any) -> Engine:
    suffix = {
        "method": "suffix",
        "num_speculative_tokens": 8,
        "draft_length_policy": "fixed",
        **config,
    }
    return Engine(model, **OPTIONS, speculative_config=suffix)


def asked(engine: Engine, salt: str | None = None) -> tuple[str, SpeculativeDecodingMetrics]:
    """An answer of 40 tokens and how its drafts fared."""
    prompt = TextPrompt(prompt=PROMPT)
    if salt is not None:
        prompt["cache_salt"] = salt
    output = only(engine.generate([prompt], PARAMS, use_tqdm=False))
    assert output.speculative_decoding is not None
    return output.text, output.speculative_decoding


@pytest.fixture(scope="module")
def plain(model: Path) -> tuple[str, int]:
    """The answer, and how many of its tokens come from drafts of its own text."""
    with engine_of(model) as engine:
        text, metrics = asked(engine)
    return text, metrics.num_accepted_draft_tokens


@pytest.mark.parametrize("form", ["txt", "text", "string", "messages", "folder"])
def test_a_corpus_is_drafted_from(
    model: Path, plain: tuple[str, int], tmp_path: Path, form: str
) -> None:
    text, alone = plain
    line = {"text": {"text": text}, "string": text, "messages": {"messages": [{"content": text}]}}
    if form in line:
        corpus = tmp_path / "answers.jsonl"
        corpus.write_text(json.dumps(line[form]) + "\n\n", encoding="utf-8")
    else:
        corpus = tmp_path / "answers.txt"
        corpus.write_text(text, encoding="utf-8")
    config = {"suffix_corpus": tmp_path if form == "folder" else corpus}
    with engine_of(model, **config) as engine:
        for salt in (None, "a"):
            again, metrics = asked(engine, salt)
            assert again == text
            assert metrics.num_accepted_draft_tokens > max(alone, 20)


def test_a_restarted_engine_knows_earlier_answers(
    model: Path, plain: tuple[str, int], tmp_path: Path
) -> None:
    text, alone = plain
    store = tmp_path / "answers.store"
    with engine_of(model, suffix_store=store) as engine:
        assert asked(engine)[1].num_accepted_draft_tokens == alone
        assert asked(engine, "a")[0] == text
    with engine_of(model, suffix_store=str(store)) as engine:
        again, metrics = asked(engine)
        assert again == text and metrics.num_accepted_draft_tokens > max(alone, 20)
        # An answer of another salt has no part of it.
        assert asked(engine, "a")[1].num_accepted_draft_tokens == alone
        assert asked(engine, "a")[1].num_accepted_draft_tokens > max(alone, 20)
        assert asked(engine, "b")[1].num_accepted_draft_tokens == alone


def test_engines_that_share_a_store_lose_no_answers(
    model: Path, plain: tuple[str, int], tmp_path: Path
) -> None:
    text, alone = plain
    store = tmp_path / "answers.store"
    with engine_of(model, suffix_store=store) as one, engine_of(model, suffix_store=store) as other:
        assert asked(one)[0] == text
        other.generate(["the other engine's prompt"], PARAMS, use_tqdm=False)
    # 40 tokens of each, behind what a store without answers holds.
    empty = tmp_path / "empty.store"
    with engine_of(model, suffix_store=empty):
        pass
    assert store.stat().st_size == empty.stat().st_size + 2 * (12 + 4 * 40)
    with engine_of(model, suffix_store=store) as engine:
        again, metrics = asked(engine)
        assert again == text and metrics.num_accepted_draft_tokens > max(alone, 20)


def test_answers_with_a_salt_are_not_written(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "answers.store"
    with engine_of(model, suffix_store=store):
        pass
    empty = store.read_bytes()
    with engine_of(model, suffix_store=store) as engine:
        asked(engine, "a")
    assert store.read_bytes() == empty
    with engine_of(model, suffix_store=store) as engine:
        asked(engine)
    assert len(store.read_bytes()) == len(empty) + 12 + 4 * 40


def test_bad_stores_are_refused_with_their_name(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "answers.store"
    with engine_of(model, suffix_store=store, store_tokenizer="another"):
        pass
    with pytest.raises(ValueError, match=r"suffix_store.*answers\.store.*another tokenizer"):
        engine_of(model, suffix_store=store)
    store.write_bytes(store.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"suffix_store.*answers\.store.*damaged"):
        engine_of(model, suffix_store=store)
    with pytest.raises(ValueError, match=r"suffix_store.*missing.*cannot be written"):
        engine_of(model, suffix_store=tmp_path / "missing" / "answers.store")


def test_bad_corpora_are_refused_with_their_name(model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('"fine"\n{"prompt": 1}\n', encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    for corpus, why in (
        (7, "must be"),
        (tmp_path / "missing", "there is no"),
        (empty, "there are no files"),
        (bad, r"bad\.jsonl:2"),
    ):
        with pytest.raises(ValueError, match=rf"suffix_corpus.*{why}"):
            engine_of(model, suffix_corpus=corpus)


def test_other_methods_take_no_corpus(model: Path) -> None:
    for key in ("suffix_corpus", "suffix_store"):
        with pytest.raises(ValueError, match=key):
            Engine(model, **OPTIONS, speculative_config={"method": "ngram", key: "x"})
