"""The client of `bench serve`: times of chunks, on a clock that the test sets, and failures."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import virtual_time
from scripted_server import (
    DONE,
    Reply,
    ScriptedServer,
    event,
    json_reply,
    text_chunk,
    usage_chunk,
)
from specdec_lab.benchmark.answers import Acceptance, Answer, Question
from specdec_lab.benchmark.client import CHAT, COMPLETIONS, OpenAIClient, acceptance_of_page
from specdec_lab.benchmark.connections import Connections

QUESTION = Question("chat", "hello", max_tokens=9, seed=4)


def ask(*replies: Reply, questions: int = 1, **options: Any) -> tuple[list[Answer], ScriptedServer]:
    """The answers to `questions` questions of a server that gives these replies in turn."""
    left = list(replies)
    server = ScriptedServer(lambda *_: left.pop(0) if len(left) > 1 else left[0])

    async def work() -> list[Answer]:
        async with server.running():
            client = OpenAIClient(server.url, **{"model": "m", **options})
            answers = [await client.ask(QUESTION) for _ in range(questions)]
            await client.close()
            return answers

    return virtual_time.run(work()), server


def completion(*, framing: str = "chunked") -> Reply:
    """Six tokens in three chunks, 0.5, 0.25 and 1 second apart."""
    return Reply(
        [
            (0.5, text_chunk("a")),
            (0.25, text_chunk("bcd")),
            (1.0, text_chunk("ef", "length")),
            (2.0, usage_chunk(3, 6) + DONE),
        ],
        framing=framing,
    )


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_times_are_those_of_the_chunks(framing: str) -> None:
    (answer,), _ = ask(completion(framing=framing))
    assert answer.error is None and answer.status == 200
    assert answer.ttft == pytest.approx(0.5)
    assert answer.itls == pytest.approx([0.25, 1.0])
    assert answer.latency == pytest.approx(1.75)  # the usage came later and is no token
    assert answer.tpot == pytest.approx(1.25 / 5)
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (3, 6)
    assert answer.text == "abcdef"


def test_a_completion_is_asked_for_as_a_stream_with_its_usage() -> None:
    _, server = ask(completion(), ignore_eos=True, extra_body={"top_k": 3}, api_key="secret")
    method, path, body = server.requests[0]
    assert (method, path) == ("POST", COMPLETIONS)
    assert body == {
        "model": "m",
        "prompt": "hello",
        "max_tokens": 9,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_k": 3,
    }
    assert server.headers[0]["authorization"] == "bearer secret"


def test_sampling_has_a_seed_and_extra_members_go_over_ours() -> None:
    _, server = ask(completion(), temperature=0.5, extra_body={"max_tokens": 2})
    body = server.requests[0][2]
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.5, 4, 2)
    assert "ignore_eos" not in body


def test_a_chats_opening_chunk_is_no_token() -> None:
    def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
        return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    reply = Reply(
        [
            (0.1, chunk(role="assistant", content="")),
            (0.2, chunk(reasoning_content="so")),
            (0.3, chunk(content="")),  # a token without text
            (0.4, chunk(content="x")),
            (0.5, chunk("stop")),
            (0.0, usage_chunk(5, 4) + DONE),
        ]
    )
    (answer,), server = ask(reply, endpoint=CHAT)
    assert server.requests[0][1] == CHAT
    assert server.requests[0][2]["messages"] == [{"role": "user", "content": "hello"}]
    assert answer.ttft == pytest.approx(0.3)
    assert answer.itls == pytest.approx([0.3, 0.4, 0.5])
    assert answer.text == "sox"


def test_events_may_be_cut_anywhere() -> None:
    chunk = text_chunk("ä").replace(b"\\u00e4", "ä".encode())
    stream = chunk + b": keep-alive\n\n" + text_chunk("b") + usage_chunk(1, 2) + DONE
    cut = chunk.index("ä".encode()) + 1  # in the middle of a letter
    num_pieces = 1 + math.ceil((len(stream) - cut) / 9)
    pieces = [stream[:cut], *(stream[cut + 9 * i :][:9] for i in range(num_pieces - 1))]
    (answer,), _ = ask(Reply([(0.1, piece) for piece in pieces]))
    assert answer.error is None and answer.text == "äb"
    first_end = 2 + (chunk.index(b"\n") - cut) // 9  # the piece with the end of the line
    assert answer.ttft == pytest.approx(0.1 * first_end)


def test_connections_are_kept_and_replaced_when_the_server_has_left() -> None:
    answers, server = ask(completion(), questions=3)
    assert server.num_connections == 1 and len(answers) == 3
    answers, server = ask(completion(framing="close"), questions=3)
    assert server.num_connections == 3 and all(answer.error is None for answer in answers)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    async def work() -> list[int]:
        served = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal served
            served += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            writer.close()  # without having said so

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
        statuses = []
        for _ in range(2):
            async with connections.request("GET", "/") as response:
                assert await response.read() == b"ok"
                statuses.append(response.status)
            await asyncio.sleep(1)
        await connections.close()
        server.close()
        return [*statuses, served]

    assert virtual_time.run(work()) == [200, 200, 2]


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        (json_reply({"error": {"message": "the queue is full"}}, 503), 503, "the queue is full"),
        (Reply(b"no such page", status=404, framing="length"), 404, "no such page"),
        (Reply([(0.1, text_chunk("a"))]), 200, "ended without [DONE]"),
        (Reply(text_chunk("a") + DONE), 200, "has no usage"),
        (Reply(usage_chunk(1, 0) + DONE), 200, "has no tokens"),
        (Reply(text_chunk("a") + event(error={"message": "out of memory"})), 200, "out of memory"),
        (Reply(text_chunk("a"), framing="torn"), 200, "closed the connection"),
        (Reply(b"data: {nonsense\n\n"), 200, "Expecting property name"),
        (Reply(b"data: 3\n\n"), 200, "no object"),
        (Reply(event(choices=[], usage={"x": 1}) + DONE), 200, "KeyError('prompt_tokens')"),
    ],
)
def test_what_fails_says_why(reply: Reply, status: int, message: str) -> None:
    (answer,), _ = ask(reply)
    assert answer.status == status
    assert answer.error is not None and message in answer.error


def test_a_server_that_is_not_there_is_named() -> None:
    async def work() -> None:
        client = OpenAIClient("http://127.0.0.1:1", model="m")
        answer = await client.ask(QUESTION)
        assert answer.status is None and answer.error is not None
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1 cannot be reached.*--base-url"):
            await client.find_model()
        assert await client.acceptance() is None and await client.count_tokens("x") is None

    virtual_time.run(work())


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    server = ScriptedServer(lambda *_: Reply([(3600.0, b"{}")]))

    async def work() -> float:
        async with server.running():
            with pytest.raises(ConnectionError, match="no answer in 60 s"):
                await OpenAIClient(server.url).find_model()
            return asyncio.get_running_loop().time()

    assert virtual_time.run(work()) == pytest.approx(60)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:port"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="--base-url"):
        OpenAIClient(url)


def test_the_model_and_counts_come_from_the_server() -> None:
    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return json_reply({"data": [{"id": "first"}, {"id": "second"}]})
        assert (method, path) == ("POST", "/tokenize")
        return json_reply({"count": len(body["prompt"])})

    server = ScriptedServer(reply)

    async def work() -> None:
        async with server.running():
            client = OpenAIClient(f"{server.url}/v1")  # as the openai client is given it
            assert await client.find_model() == "first"
            assert await client.count_tokens("abcd") == 4
            named = OpenAIClient(server.url, model="mine")
            assert await named.find_model() == "mine"

    virtual_time.run(work())


def test_acceptance_comes_from_answers() -> None:
    member = {
        "acceptance_histogram": [3, 2, 1],
        "num_spec_steps": 6,
        "num_draft_tokens": 12,
        "num_accepted_draft_tokens": 4,
    }
    metrics = {"speculative_decoding": member}
    reply = Reply(text_chunk("a") + usage_chunk(1, 1, metrics=metrics) + DONE)
    (answer,), _ = ask(reply)
    assert answer.acceptance == Acceptance(6, 12, 4, (3, 1))
    del member["num_spec_steps"]
    reply = Reply(text_chunk("a") + usage_chunk(1, 1, metrics=metrics) + DONE)
    (answer,), _ = ask(reply)
    assert answer.error is not None and "num_spec_steps" in answer.error


def test_acceptance_comes_from_a_page_of_metrics() -> None:
    page = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 6.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 2.0e+01
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
vllm:num_requests_running 3.0
"""
    assert acceptance_of_page(page) == Acceptance(10, 20, 9, (7, 2))
    assert acceptance_of_page("vllm:num_requests_running 3.0\n") is None
