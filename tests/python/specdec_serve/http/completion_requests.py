"""Requests to /v1/completions, whole and streamed, and the offline engine's answers."""

from typing import Any

from server_world import World
from specdec_native import Engine, SamplingParams
from specdec_native.requests.outputs import RequestOutput
from tiny_text_model import FIRST_CHAR, TEXT_TOKEN_IDS

PATH = "/v1/completions"
PROMPT = "to be or not to be"
SAMPLING: dict[str, Any] = {
    "seed": 5,
    "max_tokens": 12,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}


def ids_of(text: str) -> list[int]:
    """The tokens of the tiny tokenizer, one a character."""
    return [ord(char) - ord(" ") + FIRST_CHAR for char in text]


def offline(engine: Engine, prompt: Any, **params: Any) -> RequestOutput:
    (output,) = engine.generate(prompt, SamplingParams(**SAMPLING | params), use_tqdm=False)
    return output


def merged(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices of a stream by index, their pieces put together."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for piece in event["choices"]:
            whole = choices.setdefault(piece["index"], {})
            for name, value in piece.items():
                if name in ("text", "token_ids"):
                    whole[name] = whole.get(name, type(value)()) + value
                elif name == "logprobs" and value is not None:
                    lists = whole.setdefault(name, {key: [] for key in value})
                    for key in value:
                        lists[key] += value[key]
                elif value is not None:
                    assert whole.setdefault(name, value) == value
    return choices


def whole_and_streamed(world: World, **body: Any) -> list[dict[str, Any]]:
    """The choices of a whole answer, which those of the stream must equal."""
    body = {**SAMPLING, **body}
    choices: list[dict[str, Any]] = world.ask(PATH, **body)["choices"]
    streamed = merged(world.events(PATH, **body))
    assert sorted(streamed) == [choice["index"] for choice in choices] == list(range(len(choices)))
    for choice in choices:
        given = {name: value for name, value in choice.items() if value is not None}
        assert streamed[choice["index"]] == given
    return choices
