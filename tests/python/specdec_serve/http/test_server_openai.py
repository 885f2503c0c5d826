"""The openai client, synchronous and asynchronous, as its users and vLLM's pages write it."""

import asyncio
import math
from typing import Any

import openai
import pytest

from server_world import MODEL, World, serving
from specdec_native import Engine
from specdec_native.requests.request import Request
from tiny_text_model import TEXT_TOKEN_IDS, only, text_params

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
EXTRA: dict[str, Any] = {"ignore_eos": True, "allowed_token_ids": TEXT_TOKEN_IDS}
BODY: dict[str, Any] = {"model": MODEL, "seed": 5, "max_tokens": 24, "extra_body": EXTRA}


def chat_texts(engine: Engine, **params: Any) -> list[str]:
    (output,) = engine.chat(MESSAGES, text_params(**params), use_tqdm=False)
    return [part.text for part in output.outputs]


def texts_of(engine: Engine, prompt: str, **params: Any) -> list[str]:
    (output,) = engine.generate(prompt, text_params(**params), use_tqdm=False)
    return [part.text for part in output.outputs]


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL) == model
    assert model.to_dict()["max_model_len"] == 96


def test_a_chat_whole_and_streamed(client: openai.OpenAI, engine: Engine) -> None:
    expected = chat_texts(engine, n=2)
    whole = client.chat.completions.create(messages=MESSAGES, n=2, **BODY)
    assert [choice.message.content for choice in whole.choices] == expected
    assert [choice.message.role for choice in whole.choices] == ["assistant"] * 2
    assert whole.choices[0].message.tool_calls is whole.choices[0].message.refusal is None
    assert [choice.finish_reason for choice in whole.choices] == ["length"] * 2
    texts = ["", ""]
    stream = client.chat.completions.create(
        messages=MESSAGES, n=2, stream=True, stream_options={"include_usage": True}, **BODY
    )
    usage = None
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == expected
    assert usage is not None and usage == whole.usage
    assert usage.completion_tokens == 48


def test_the_clients_stream_helper_puts_a_chat_together(
    client: openai.OpenAI, engine: Engine
) -> None:
    text = chat_texts(engine)[0]
    stop = text[9:11]  # the helper takes an answer that was cut for an error
    with client.chat.completions.stream(messages=MESSAGES, stop=stop, **BODY) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(stop)]
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_a_completion_whole_and_streamed(client: openai.OpenAI, engine: Engine) -> None:
    expected = [*texts_of(engine, "abc", n=2), *texts_of(engine, "x", n=2)]
    whole = client.completions.create(prompt=["abc", "x"], n=2, **BODY)
    assert [choice.text for choice in whole.choices] == expected
    texts = [""] * 4
    for chunk in client.completions.create(prompt=["abc", "x"], n=2, stream=True, **BODY):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected
    assert whole.usage is not None and whole.usage.total_tokens == 4 + 4 * 24


def test_logprobs_are_parsed(client: openai.OpenAI, engine: Engine) -> None:
    params = text_params(logprobs=2)
    expected = only(engine.chat(MESSAGES, params, use_tqdm=False))
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **BODY)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert sum(entry.logprob for entry in logprobs.content) == pytest.approx(
        expected.cumulative_logprob
    )
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    assert "".join(entry.token for entry in logprobs.content) == expected.text
    completion = client.completions.create(prompt="abc", logprobs=2, **BODY)
    lists = completion.choices[0].logprobs
    assert lists is not None and lists.tokens is not None and lists.token_logprobs is not None
    assert "".join(lists.tokens) == completion.choices[0].text
    assert all(math.isfinite(logprob) for logprob in lists.token_logprobs)


def test_the_asynchronous_client(world: World, engine: Engine) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client:
            create = client.chat.completions.create

            async def streamed() -> str:
                stream = await create(messages=MESSAGES, stream=True, **BODY)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole() -> str | None:
                answer = await create(messages=MESSAGES, **BODY)
                text: str | None = answer.choices[0].message.content
                return text

            async def completed() -> str:
                stream = await client.completions.create(prompt="abc", stream=True, **BODY)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return list(await asyncio.gather(streamed(), whole(), completed()))

    assert asyncio.run(ask()) == [*chat_texts(engine) * 2, *texts_of(engine, "abc")]


def test_errors_are_the_clients_exceptions(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="`other` does not exist") as missing:
        chat(model="other", messages=MESSAGES)
    assert missing.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError) as bad:
        chat(model=MODEL, messages=MESSAGES, temperature=9)
    assert (bad.value.param, bad.value.type) == ("temperature", "BadRequestError")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 96 tokens"):
        chat(model=MODEL, messages=[{"role": "user", "content": "x" * 500}], stream=True)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=MODEL, prompt="a", temperature=9)
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        client.responses.create(model=MODEL, input="a", max_output_tokens=97)


def test_a_wrong_key_is_an_authentication_error(engine: Engine) -> None:
    with serving(engine, api_keys=("secret", "other")) as world:
        base = f"{world.url}/v1"
        for key in ("secret", "other"):
            with openai.OpenAI(base_url=base, api_key=key) as client:
                assert client.models.list().data[0].id == MODEL
        with openai.OpenAI(base_url=base, api_key="EMPTY") as client:
            for call in (
                client.models.list,
                lambda: client.chat.completions.create(messages=MESSAGES, model=MODEL),
                lambda: client.completions.create(prompt="a", model=MODEL, stream=True),
                lambda: client.responses.create(input="a", model=MODEL),
            ):
                with pytest.raises(openai.AuthenticationError):
                    call()


def test_what_fails_late_is_an_exception_too(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that has begun says in an event what went wrong."""

    def fails(_: Request) -> Any:
        raise RuntimeError("planted")

    subjects: list[tuple[Any, dict[str, Any]]] = [
        (client.chat.completions.create, {"messages": MESSAGES}),
        (client.completions.create, {"prompt": "a"}),
    ]
    for create, subject in subjects:
        with monkeypatch.context() as patch:
            patch.setattr(Request, "take_output", fails)
            with pytest.raises(openai.APIError, match="its log says more"):
                list(create(stream=True, **subject, **BODY))
            with pytest.raises(openai.InternalServerError, match="its log says more"):
                create(**subject, **BODY)
            events = list(client.responses.create(input="a", model=MODEL, stream=True))
            assert [event.type for event in events][-1] == "response.failed"
            assert "its log says" in events[-1].response.error.message  # type: ignore[union-attr]
        assert list(create(stream=True, **subject, **BODY))


def test_a_chat_of_several_steps(model: Any) -> None:
    messages: Any = [{"role": "user", "content": "to be or not to be " * 3}]
    body: dict[str, Any] = {**BODY, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    limits: Any = {"max_model_len": 96, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    seen = 0
    with (
        Engine(model, dtype="float32", **limits) as engine,
        serving(engine) as world,
        openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client,
    ):
        for chunk in client.chat.completions.create(
            messages=messages, stream=True, stream_options=options, **body
        ):
            for choice in chunk.choices:
                seen += len(choice.logprobs.content or []) if choice.logprobs else 0
            assert chunk.usage is not None and chunk.usage.completion_tokens == seen
    assert seen == 5


def test_a_chat_samples_as_the_checkpoint_says(model: Any, engine: Engine) -> None:
    defaults = {"repetition_penalty": 1.4, "temperature": 0.3}
    with (
        Engine(
            model, dtype="float32", max_model_len=96, override_generation_config=defaults
        ) as configured,
        serving(configured) as world,
    ):
        several: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"repetition_penalty": 1.0}]
        for given in several:
            answer = world.ask(
                "/v1/chat/completions", messages=MESSAGES, seed=5, max_tokens=24, **EXTRA, **given
            )
            expected = chat_texts(engine, **defaults | given)
            assert [choice["message"]["content"] for choice in answer["choices"]] == expected
