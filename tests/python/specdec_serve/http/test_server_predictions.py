"""`prediction` of chats, as OpenAI's clients send it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_world import World, serving
from specdec_native import Engine
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "ab" * 16}],
    "temperature": 0,
    "max_tokens": 24,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "draft_length_policy": "fixed"}


@pytest.fixture(scope="module")
def world(model: Path) -> Iterator[World]:
    with Engine(model, **OPTIONS, speculative_config=NGRAM) as engine, serving(engine) as world:
        yield world


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def details(answer: dict[str, Any]) -> tuple[int, int]:
    told = answer["usage"]["completion_tokens_details"]
    return told["accepted_prediction_tokens"], told["rejected_prediction_tokens"]


def test_the_usage_says_how_much_was_right(world: World) -> None:
    plain = world.ask(CHAT, **BODY)
    assert "completion_tokens_details" not in plain["usage"]
    text = text_of(plain)
    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    for content in (text, parts):
        answer = world.ask(CHAT, **BODY, prediction={"type": "content", "content": content})
        assert text_of(answer) == text
        accepted, rejected = details(answer)
        assert accepted >= 16 and rejected == 0
    changed = text[:3] + text[2] * 20
    answer = world.ask(CHAT, **BODY, prediction={"type": "content", "content": changed})
    assert text_of(answer) == text
    accepted, rejected = details(answer)
    assert rejected > 0


def test_a_stream_says_the_same(world: World) -> None:
    prediction = {"type": "content", "content": text_of(world.ask(CHAT, **BODY))}
    whole = world.ask(CHAT, **BODY, prediction=prediction)
    events = list(
        world.events(CHAT, **BODY, prediction=prediction, stream_options={"include_usage": True})
    )
    assert events[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    "bad",
    ["text", {"content": "text"}, {"type": "image", "content": "a"}, {"type": "content"},
     {"type": "content", "content": [{"type": "image_url", "text": "a"}]}],
)  # fmt: skip
def test_other_predictions_are_refused(world: World, bad: object) -> None:
    response = world.post(CHAT, **BODY, prediction=bad)
    assert response.status_code == 400
    assert "prediction" in response.text


def test_a_server_replays_what_an_earlier_one_recorded(model: Path, tmp_path: Path) -> None:
    def served(key: str) -> tuple[str, int]:
        """The answer, and how many of its tokens were accepted drafts."""
        config = {**NGRAM, "method": "replay", key: tmp_path / "answers"}
        with Engine(model, **OPTIONS, speculative_config=config) as engine:
            with serving(engine) as world:
                text = text_of(world.ask(CHAT, **{**BODY, "temperature": 1, "seed": 3}))
            metrics = engine.stats().speculative_decoding
            assert metrics is not None
            return text, metrics.num_accepted_draft_tokens

    text, accepted = served("record")
    assert accepted == 0
    assert served("replay") == (text, 18)  # of 23 tokens after the first, 4 of 5 in every step
