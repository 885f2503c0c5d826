"""LangChain against a server: python tests/clients/langchain_client.py URL MODEL

Needs langchain-openai, in an environment of its own. Compares what LangChain makes of answers with
what the server says to plain requests, and fails with an AssertionError.
"""

import asyncio
import sys
from typing import Any

import httpx
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

QUESTION = "Name three colours."
SYSTEM = "You answer briefly."


def main(url: str, model: str) -> None:
    base: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "EMPTY", "model": model}
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 3}
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    chat = ChatOpenAI(**base, **sampling, max_tokens=24)
    conversation = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]

    def post(path: str, **body: Any) -> Any:
        response = httpx.post(f"{url}/v1/{path}", json={"model": model, **body}, timeout=120)
        response.raise_for_status()
        return response.json()

    expected = post("chat/completions", messages=messages, **sampling, max_tokens=24)
    text = expected["choices"][0]["message"]["content"]

    answer = chat.invoke(conversation)
    assert isinstance(answer, AIMessage) and answer.content == text, answer
    assert answer.response_metadata["finish_reason"] == expected["choices"][0]["finish_reason"]
    usage = answer.usage_metadata
    assert usage and usage["output_tokens"] == expected["usage"]["completion_tokens"], usage
    assert usage["input_tokens"] == expected["usage"]["prompt_tokens"], usage

    chunks = list(chat.stream(conversation, stream_usage=True))
    assert "".join(chunk.text for chunk in chunks) == text
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert (
        sum(usage["output_tokens"] for usage in counted) == (expected["usage"]["completion_tokens"])
    )

    async def ask() -> list[Any]:
        async def streamed() -> str:
            return "".join([chunk.text async for chunk in chat.astream(conversation)])

        answers = await asyncio.gather(*[chat.ainvoke(conversation) for _ in range(4)])
        return [await streamed(), *(answer.content for answer in answers)]

    assert set(asyncio.run(ask())) == {text}

    chain = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "{question}")]) | chat
    assert chain.invoke({"question": QUESTION}).content == text
    assert [each.content for each in chat.batch([conversation] * 3)] == [text] * 3

    with_logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(conversation)
    entries = with_logprobs.response_metadata["logprobs"]["content"]
    assert len(entries) == usage["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)

    several = chat.generate([conversation], n=2).generations[0]
    assert several[0].text == text and len(several) == 2

    stop = text[3:6]
    stopped = chat.invoke(conversation, stop=[stop])
    assert stopped.content == text[: text.index(stop)]

    drafts_off = ChatOpenAI(
        **base, **sampling, max_tokens=24, extra_body={"num_speculative_tokens": 0}
    )
    assert drafts_off.invoke(conversation).content == text

    responses = ChatOpenAI(
        **base, temperature=0.8, max_tokens=24, use_responses_api=True, extra_body={"seed": 3}
    )
    assert responses.invoke(conversation).text == text
    assert "".join(chunk.text for chunk in responses.stream(conversation)) == text

    check_completions(base, sampling, post)
    print("langchain-openai: all answers are those of plain requests")


def check_completions(base: dict[str, Any], sampling: dict[str, Any], post: Any) -> None:
    complete = OpenAI(**base, **sampling, max_tokens=24)
    expected = post("completions", prompt="One, two,", **sampling, max_tokens=24)
    assert complete.invoke("One, two,") == expected["choices"][0]["text"]
    assert "".join(complete.stream("One, two,")) == expected["choices"][0]["text"]

    try:
        ChatOpenAI(**base, temperature=9).invoke(QUESTION)
    except Exception as error:
        assert "400" in str(error) and "temperature" in str(error), repr(error)
    else:
        raise AssertionError("a bad temperature was taken")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2])
