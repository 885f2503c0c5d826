"""Requests to /v1/chat/completions, whole and streamed."""

from typing import Any

from server_world import World
from tiny_text_model import TEXT_TOKEN_IDS

PATH = "/v1/chat/completions"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
PROMPT = "user:hello;assistant:"
SAMPLING: dict[str, Any] = {
    "seed": 5,
    "max_tokens": 24,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}


def ask(world: World, **body: Any) -> dict[str, Any]:
    return world.ask(PATH, **{"messages": MESSAGES, **SAMPLING, **body})


def stream(world: World, **body: Any) -> list[dict[str, Any]]:
    return world.events(PATH, **{"messages": MESSAGES, **SAMPLING, **body})


def refusal(world: World, **body: Any) -> dict[str, Any]:
    """The error, which is the same for a stream."""
    errors = [
        world.error(PATH, **{"messages": MESSAGES, **body, "stream": streamed})
        for streamed in (False, True)
    ]
    assert errors[0] == errors[1]
    return errors[0]


def contents(events: list[dict[str, Any]], n: int = 1) -> list[str]:
    """The text of every choice."""
    texts = [""] * n
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"]["content"]
    return texts


def both(world: World, n: int = 1, **body: Any) -> list[str]:
    """The text of every choice, which is the same whole and streamed."""
    whole = [choice["message"]["content"] for choice in ask(world, n=n, **body)["choices"]]
    assert contents(stream(world, n=n, **body), n) == whole
    return whole


def num_prompt_tokens(world: World, **body: Any) -> int:
    """One token a character, so this is the length of what the template wrote."""
    number: int = ask(world, **body)["usage"]["prompt_tokens"]
    return number
