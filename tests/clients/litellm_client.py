"""LiteLLM against a server: python tests/clients/litellm_client.py URL MODEL

Needs litellm, in an environment of its own. Compares what LiteLLM makes of answers with what the
server says to plain requests, and fails with an AssertionError.
"""

import asyncio
import sys
from typing import Any

import httpx
import litellm

litellm.suppress_debug_info = True

MESSAGES = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Name three colours."},
]


def main(url: str, model: str) -> None:
    base: dict[str, Any] = {
        "model": f"hosted_vllm/{model}",
        "api_base": f"{url}/v1",
        "api_key": "EMPTY",
        "num_retries": 0,
    }
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 24}

    def post(path: str, **body: Any) -> Any:
        response = httpx.post(f"{url}/v1/{path}", json={"model": model, **body}, timeout=120)
        response.raise_for_status()
        return response.json()

    expected = post("chat/completions", messages=MESSAGES, **sampling)
    text = expected["choices"][0]["message"]["content"]

    answer: Any = litellm.completion(**base, messages=MESSAGES, **sampling)
    (choice,) = answer.choices
    assert choice.message.content == text, answer
    assert choice.message.role == "assistant" and not choice.message.tool_calls
    assert choice.finish_reason == expected["choices"][0]["finish_reason"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(answer.usage, name) == expected["usage"][name]

    several: Any = litellm.completion(**base, messages=MESSAGES, **sampling, n=2)
    assert len(several.choices) == 2 and several.choices[0].message.content == text

    chunks: list[Any] = list(
        litellm.completion(
            **base,
            messages=MESSAGES,
            **sampling,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == text
    built: Any = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content == text
    assert built.usage.completion_tokens == expected["usage"]["completion_tokens"]

    async def ask() -> list[Any]:
        async def streamed() -> str:
            stream: Any = await litellm.acompletion(
                **base, messages=MESSAGES, **sampling, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def whole() -> Any:
            answer: Any = await litellm.acompletion(**base, messages=MESSAGES, **sampling)
            return answer.choices[0].message.content

        return list(await asyncio.gather(streamed(), whole(), whole(), streamed()))

    assert set(asyncio.run(ask())) == {text}

    with_logprobs: Any = litellm.completion(
        **base, messages=MESSAGES, **sampling, logprobs=True, top_logprobs=2
    )
    entries = with_logprobs.choices[0].logprobs.content
    assert len(entries) == expected["usage"]["completion_tokens"]

    # Fields that LiteLLM does not know go to the server as they are.
    off: Any = litellm.completion(
        **base, messages=MESSAGES, **sampling, extra_body={"num_speculative_tokens": 0}
    )
    assert off.choices[0].message.content == text

    completed = post("completions", prompt="One, two,", **sampling)["choices"][0]["text"]
    old: Any = litellm.text_completion(
        **{**base, "model": f"text-completion-openai/{model}"}, prompt="One, two,", **sampling
    )
    assert old.choices[0].text == completed

    def refusal(error: type[Exception], **body: Any) -> str:
        try:
            litellm.completion(**base, **body)
        except error as raised:
            return str(raised)
        raise AssertionError(f"{body!r:.80} was taken")

    long = [{"role": "user", "content": "word " * 200_000}]
    message = refusal(litellm.ContextWindowExceededError, messages=long)
    assert "maximum context length" in message
    assert "temperature" in refusal(litellm.BadRequestError, messages=MESSAGES, temperature=9)
    base["model"] = "hosted_vllm/no-such-model"
    assert "does not exist" in refusal(litellm.NotFoundError, messages=MESSAGES)
    print("litellm: all answers are those of plain requests")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2])
