"""Many clients at random times: every answer is the offline engine's for its seed."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_world import World, serving
from specdec_native import Engine, SamplingParams
from tiny_text_model import FIRST_CHAR, TEXT_TOKEN_IDS

NUM_CLIENTS = 64
NUM_REQUESTS = 2  # of each client, one after the other
LEN = 160


def make_request(rng: random.Random) -> dict[str, Any]:
    """A body for one of the two paths, with what it is sampled with."""
    words = ["abc", "xyz", "hello", "one two", "{}", "0101"]
    text = " ".join(rng.choices(words, k=rng.randint(1, 8)))
    sampling: dict[str, Any] = {
        "seed": rng.randint(0, 2**31),
        "max_tokens": rng.randint(1, 50),
        "temperature": rng.choice([0.0, 0.3, 1.0, 1.5]),
        "top_p": rng.choice([1.0, 0.9, 0.5]),
        "top_k": rng.choice([0, 5, 40]),
        "min_p": rng.choice([0.0, 0.05]),
        "presence_penalty": rng.choice([0.0, 0.5]),
        "repetition_penalty": rng.choice([1.0, 1.2]),
        "ignore_eos": rng.random() < 0.7,
    }
    if sampling["temperature"] > 0:
        sampling["n"] = rng.choice([1, 1, 1, 2, 3])
    if rng.random() < 0.5:
        sampling["allowed_token_ids"] = TEXT_TOKEN_IDS
    if rng.random() < 0.3:
        sampling["stop"] = [rng.choice("abcdefgh01")]
    if rng.random() < 0.3:
        sampling["logit_bias"] = {str(FIRST_CHAR + rng.randrange(90)): 20.0}
    return {
        "is_chat": rng.random() < 0.5,
        "text": text,
        "sampling": sampling,
        "logprobs": rng.choice([None, None, 2]),
        "stream": rng.random() < 0.5,
        "drafts": rng.choice([None, 0, 1, 3]),
        "delay": rng.random() * 0.05,
    }


def expected_of(engine: Engine, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The engine's answers without a server, by choice."""
    params = SamplingParams(**request["sampling"], logprobs=request["logprobs"])
    if request["is_chat"]:
        messages = [{"role": "user", "content": request["text"]}]
        (output,) = engine.chat(messages, params, use_tqdm=False)
    else:
        (output,) = engine.generate(request["text"], params, use_tqdm=False)
    return [
        {
            "text": part.text,
            "token_ids": list(part.token_ids),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
            "logprobs": [
                position[token].logprob
                for token, position in zip(part.token_ids, part.logprobs or [], strict=False)
            ],
        }
        for part in output.outputs
    ]


def merged(request: dict[str, Any], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of an answer, put together from one event or from many."""
    choices: list[dict[str, Any]] = [
        {"text": "", "token_ids": [], "finish_reason": None, "stop_reason": None, "logprobs": []}
        for _ in range(request["sampling"].get("n", 1))
    ]
    for event in events:
        for piece in event["choices"]:
            choice = choices[piece["index"]]
            assert choice["finish_reason"] is None
            message = piece.get("message") or piece.get("delta") or {"content": piece.get("text")}
            choice["text"] += message["content"]
            choice["token_ids"] += piece.get("token_ids") or []
            choice["finish_reason"] = piece["finish_reason"]
            choice["stop_reason"] = piece.get("stop_reason")
            logprobs = piece["logprobs"] or {}
            choice["logprobs"] += logprobs.get("token_logprobs", [])
            choice["logprobs"] += [entry["logprob"] for entry in logprobs.get("content", [])]
    return choices


async def ask(client: httpx.AsyncClient, request: dict[str, Any]) -> list[dict[str, Any]]:
    body = {**request["sampling"], "stream": request["stream"], "return_token_ids": True}
    body["num_speculative_tokens"] = request["drafts"]
    if request["is_chat"]:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": request["text"]}]
        if request["logprobs"] is not None:
            body |= {"logprobs": True, "top_logprobs": request["logprobs"]}
    else:
        path = "/v1/completions"
        body |= {"prompt": request["text"], "logprobs": request["logprobs"]}
    await asyncio.sleep(request["delay"])
    async with client.stream("POST", path, json=body) as response:
        text = (await response.aread()).decode()
    assert response.status_code == 200, text
    if not request["stream"]:
        return merged(request, [json.loads(text)])
    *lines, last, _ = text.split("\n\n")
    assert last == "data: [DONE]"
    return merged(request, [json.loads(line.removeprefix("data: ")) for line in lines])


async def ask_all(
    world: World, requests: list[list[dict[str, Any]]]
) -> list[list[list[dict[str, Any]]]]:
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=world.url, timeout=120, limits=limits) as client:

        async def one_client(of_client: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
            return [await ask(client, request) for request in of_client]

        return await asyncio.gather(*map(one_client, requests))


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_every_answer_is_the_offline_one(model: Path, method: str) -> None:
    rng = random.Random(method)
    requests = [[make_request(rng) for _ in range(NUM_REQUESTS)] for _ in range(NUM_CLIENTS)]
    config: dict[str, Any] | None = {
        "method": method,
        "num_speculative_tokens": 3,
        "draft_length_policy": "fixed",
    }
    if method == "draft_model":
        config = {**(config or {}), "model": str(model)}
    if method == "none":
        config = None
        for request in (request for of_client in requests for request in of_client):
            request["drafts"] = None
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": LEN}
    with Engine(model, **options) as offline:
        expected = [[expected_of(offline, r) for r in of_client] for of_client in requests]
    with Engine(model, **options, speculative_config=config) as engine, serving(engine) as world:
        answers = asyncio.run(ask_all(world, requests))
        stats = engine.stats()
    wrong = [
        (requests[i][j], expected[i][j], answers[i][j])
        for i in range(NUM_CLIENTS)
        for j in range(NUM_REQUESTS)
        if answers[i][j] != expected[i][j]
    ]
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"
    assert stats.num_running == stats.num_waiting == 0
    if config is not None:
        assert stats.speculative_decoding is not None
        assert stats.speculative_decoding.num_accepted_draft_tokens > 0
