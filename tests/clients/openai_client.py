"""OpenAI's client against a server: python tests/clients/openai_client.py URL MODEL

Needs openai. Fails with an AssertionError unless whole and streamed answers, of the blocking and of
the asynchronous client, are the same.
"""

import asyncio
import sys
from typing import Any

import openai

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 24}


def main(url: str, model: str, _tokenizer: str = "") -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0)
    assert model in [card.id for card in client.models.list()]
    assert client.models.retrieve(model).id == model

    chat: Any = client.chat.completions.create(model=model, messages=MESSAGES, **SAMPLING)
    text = chat.choices[0].message.content
    assert text and chat.usage.completion_tokens <= 24
    several: Any = client.chat.completions.create(model=model, messages=MESSAGES, n=3, **SAMPLING)
    assert len(several.choices) == 3 and several.choices[0].message.content == text

    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(
        client.chat.completions.create(model=model, messages=MESSAGES, **SAMPLING, **options)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert not chunks[-1].choices and chunks[-1].usage == chat.usage

    whole: Any = client.completions.create(model=model, prompt="One, two,", logprobs=2, **SAMPLING)
    pieces = client.completions.create(model=model, prompt="One, two,", stream=True, **SAMPLING)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert len(whole.choices[0].logprobs.token_logprobs) == whole.usage.completion_tokens

    assert asyncio.run(ask_at_once(url, model, 8)) == [text] * 8
    check_errors(client, model)


async def ask_at_once(url: str, model: str, number: int) -> list[str]:
    """The texts of so many streams of the asynchronous client."""

    async def ask(client: openai.AsyncOpenAI) -> str:
        stream: Any = await client.chat.completions.create(
            model=model, messages=MESSAGES, stream=True, **SAMPLING
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        return "".join(pieces)

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY") as client:
        return list(await asyncio.gather(*(ask(client) for _ in range(number))))


def check_errors(client: openai.OpenAI, model: str) -> None:
    """Bad requests raise what OpenAI's would."""
    try:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
        raise AssertionError("a model that is not there answers")
    except openai.NotFoundError as error:
        assert error.param == "model"
    try:
        client.completions.create(model=model, prompt="a", temperature=-1)
        raise AssertionError("a negative temperature is taken")
    except openai.BadRequestError as error:
        assert error.param == "temperature"


if __name__ == "__main__":
    main(*sys.argv[1:])
