"""Logprobs and token ids of /v1/chat/completions against the offline engine, whole and streamed."""

import math
from typing import Any

import pytest

from chat_requests import (
    MESSAGES,
    PATH,
    ask,
    stream,
)
from server_world import World, serving
from specdec_native import Engine
from tiny_text_model import only, text_params


def reference(engine: Engine, **params: Any) -> Any:
    """The engine's own completion of the prompt, with logprobs."""
    return only(engine.chat(MESSAGES, text_params(**params), use_tqdm=False))


@pytest.mark.parametrize("num_top", [None, 0, 2])
def test_logprobs_are_the_engines(world: World, engine: Engine, num_top: int | None) -> None:
    expected = reference(engine, logprobs=num_top or 0)
    body = {"logprobs": True, "top_logprobs": num_top}
    whole = ask(world, **body)["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for event in stream(world, **body)
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert whole == streamed and len(whole) == 24
    for entry, token_id, position in zip(whole, expected.token_ids, expected.logprobs, strict=True):
        chosen = position[token_id]
        assert (entry["token"], entry["logprob"]) == (chosen.decoded_token, chosen.logprob)
        assert bytes(entry["bytes"]).decode() == entry["token"]
        likeliest = sorted(position.values(), key=lambda logprob: logprob.rank)[: num_top or 0]
        assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [
            (top.decoded_token, top.logprob) for top in likeliest
        ]
        assert all(bytes(top["bytes"]).decode() == top["token"] for top in entry["top_logprobs"])


def test_forbidden_tokens_have_a_number_for_a_logprob(engine: Engine) -> None:
    processed = Engine(
        engine.model_directory,
        dtype="float32",
        max_model_len=96,
        logprobs_mode="processed_logprobs",
    )
    with processed, serving(processed) as world:
        answer = ask(world, allowed_token_ids=[7], logprobs=True, top_logprobs=3, max_tokens=1)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert [top["logprob"] for top in entry["top_logprobs"]] == [0.0, -9999.0, -9999.0]


def test_all_logprobs_come_where_there_is_no_limit(engine: Engine) -> None:
    unlimited = Engine(engine.model_directory, dtype="float32", max_model_len=96, max_logprobs=-1)
    with unlimited, serving(unlimited) as world:
        answer = ask(world, max_tokens=1, logprobs=True, top_logprobs=-1, prompt_logprobs=-1)
    vocab_size = unlimited.model_info().vocab_size
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == len(answer["prompt_logprobs"][1]) == vocab_size
    total = sum(math.exp(top["logprob"]) for top in entry["top_logprobs"])
    assert total == pytest.approx(1, abs=1e-4)


def test_tokens_can_be_named_by_their_ids(world: World, engine: Engine) -> None:
    ids = reference(engine).token_ids
    body = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    entries = ask(world, **body)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in ids]
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in entries)


def test_logprobs_of_the_prompt_stand_on_top(world: World, engine: Engine) -> None:
    (output,) = engine.chat(MESSAGES, text_params(prompt_logprobs=1), use_tqdm=False)
    answer = ask(world, prompt_logprobs=1)
    assert output.prompt_logprobs is not None
    assert answer["prompt_logprobs"][0] is None
    for entry, expected in zip(
        answer["prompt_logprobs"][1:], output.prompt_logprobs[1:], strict=True
    ):
        assert {int(token): value["logprob"] for token, value in entry.items()} == {
            token: value.logprob for token, value in (expected or {}).items()
        }
    assert world.error(PATH, messages=MESSAGES, prompt_logprobs=1, stream=True)["param"] == (
        "prompt_logprobs"
    )


def test_token_ids_come_on_wish(world: World, engine: Engine) -> None:
    (output,) = engine.chat(MESSAGES, text_params(n=2), use_tqdm=False)
    expected = [list(part.token_ids) for part in output.outputs]
    answer = ask(world, n=2, return_token_ids=True)
    assert answer["prompt_token_ids"] == output.prompt_token_ids
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    first, *rest = stream(world, n=2, return_token_ids=True)
    assert first["prompt_token_ids"] == output.prompt_token_ids
    streamed: list[list[int]] = [[], []]
    for event in rest:
        assert "prompt_token_ids" not in event
        streamed[event["choices"][0]["index"]] += event["choices"][0].get("token_ids", [])
    assert streamed == expected
