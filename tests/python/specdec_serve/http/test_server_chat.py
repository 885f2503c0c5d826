"""/v1/chat/completions: every field against the offline engine, whole and streamed."""

import json
from typing import Any

import pytest

from chat_requests import (
    MESSAGES,
    PATH,
    PROMPT,
    ask,
    both,
    contents,
    num_prompt_tokens,
    refusal,
    stream,
)
from server_world import MODEL, World, serving
from specdec_native import Engine
from tiny_text_model import END, TEXT_TOKEN_IDS, only, text_params

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_an_answer_has_the_members_of_vllms(world: World, engine: Engine) -> None:
    expected = only(engine.chat(MESSAGES, text_params(), use_tqdm=False))
    answer = ask(world, model=MODEL)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL and isinstance(answer["created"], int)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["role"], message["content"]) == ("assistant", expected.text)
    assert {message[name] for name in ("refusal", "audio", "function_call")} == {None}
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert choice["logprobs"] is choice["token_ids"] is answer["prompt_token_ids"] is None
    assert answer["prompt_logprobs"] is None
    assert answer["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 24,
        "total_tokens": len(PROMPT) + 24,
        "prompt_tokens_details": None,
    }


def test_a_stream_opens_with_the_role_of_each_choice(world: World, engine: Engine) -> None:
    events = stream(world, n=3)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    for i in range(3):
        (choice,) = events[i]["choices"]
        assert choice["index"] == i and choice["finish_reason"] is None
        assert choice["delta"] == {"role": "assistant", "content": ""}
    last: dict[int, Any] = {}
    for event in events[3:]:
        (choice,) = event["choices"]
        assert last.get(choice["index"]) is None, "nothing follows a choice's end"
        assert isinstance(choice["delta"]["content"], str) and "role" not in choice["delta"]
        last[choice["index"]] = choice["finish_reason"]
    assert last == dict.fromkeys(range(3), "length")
    (output,) = engine.chat(MESSAGES, text_params(n=3), use_tqdm=False)
    assert contents(events, 3) == [part.text for part in output.outputs]


def test_a_token_without_text_is_a_chunk_with_empty_content(world: World) -> None:
    events = stream(world, allowed_token_ids=[END], max_tokens=2)
    assert contents(events) == [""]
    assert all(event["choices"][0]["delta"]["content"] == "" for event in events)
    assert len(events) >= 2


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 0.5, "top_p": 0.8, "top_k": 9, "min_p": 0.01},
        {"presence_penalty": 1.5, "frequency_penalty": 1, "repetition_penalty": 1.3},
        {"logit_bias": {"40": 100, "41": 7}},
        {"bad_words": ["a", "b"], "min_tokens": 5},
        {"n": 3, "temperature": 0.9, "num_speculative_tokens": 0},
    ],
)
def test_sampling_is_the_engines(world: World, engine: Engine, sampling: dict[str, Any]) -> None:
    (output,) = engine.chat(MESSAGES, text_params(**sampling), use_tqdm=False)
    expected = [part.text for part in output.outputs]
    rest = {name: value for name, value in sampling.items() if name != "n"}
    assert both(world, sampling.get("n", 1), **rest) == expected


@pytest.mark.parametrize("included", [False, True])
def test_stops_end_a_choice(world: World, engine: Engine, included: bool) -> None:
    text = only(engine.chat(MESSAGES, text_params(), use_tqdm=False)).text
    stop = text[9:11]
    kept = text[: text.index(stop) + 2 * included]
    body: dict[str, Any] = {"stop": ["never seen", stop], "include_stop_str_in_output": included}
    assert both(world, **body) == [kept]
    (choice,) = ask(world, **body)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    last = stream(world, **body)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    token = TEXT_TOKEN_IDS[ord(text[3]) - 32]
    (choice,) = ask(world, stop_token_ids=[token])["choices"]
    assert choice["stop_reason"] == token


# -- the prompt


@pytest.mark.parametrize("role", ["user", "a role of one's own"])
def test_content_may_be_parts_of_text(world: World, role: str) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "input_text", "text": "lo"}, "!"]
    conversations = [
        [{"role": role, "content": parts}],
        [{"role": role, "content": "hel\nlo\n!"}],
    ]
    texts = [both(world, messages=messages) for messages in conversations]
    assert texts[0] == texts[1]


def test_a_refusal_is_what_the_assistant_said(world: World) -> None:
    texts = [
        both(world, messages=[{"role": "assistant", **said}, *MESSAGES])
        for said in ({"content": None, "refusal": "no"}, {"content": "no"}, {"content": "no!"})
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 9999}}]},
        {"role": "user", "content": [{"type": "audio", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": 7}]},
        {"role": "user", "content": [7]},
        {"role": "user", "content": {"text": "a"}},
        {"role": "", "content": "a"},
        {"role": 7, "content": "a"},
        {"content": "a"},
        {"role": "assistant", "content": "a", "tool_calls": 7},
        {"role": "assistant", "content": "a", "tool_calls": [7]},
        {"role": "user", "content": "a", "name": {}},
        {"role": "tool", "content": "a", "tool_call_id": 7},
        {"role": "user"},
        {"role": "user", "text": "a"},
        {"role": "assistant", "refusal": 7},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
    ],
)
def test_messages_that_no_template_shows_are_refused(world: World, message: dict[str, Any]) -> None:
    error = refusal(world, messages=[message])
    assert error["param"] == "messages"
    assert "messages" in error["message"] and len(error["message"]) < 600


def test_messages_that_the_template_leaves_out_are_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [*MESSAGES, {"role": "note", "content": "e"}]
    template = "{% for m in messages if m.role != 'note' %}{{ m.role }}{{ m.content }}{% endfor %}"
    monkeypatch.setitem(engine.tokenizer._chat_templates, "default", template)
    with serving(engine) as world:
        error = refusal(world, messages=history)
        assert error["param"] == "messages" and error["message"].startswith("messages[1]: ")
        assert "/" not in error["message"]  # a folder of the server
        history[1]["role"] = "developer"
        answer = ask(world, messages=history, return_token_ids=True)
    shown = engine.tokenizer.decode(answer["prompt_token_ids"])
    assert shown == "userhellosysteme"


@pytest.mark.parametrize("member", ["content", "role"])
def test_half_a_character_is_no_text(world: World, member: str) -> None:
    message = {"role": "user", "content": "a", member: "\ud800"}
    response = world.client.post(
        PATH,
        content=json.dumps({"messages": [message], "max_tokens": 1}),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 400, response.text
    assert "half of a surrogate pair" in response.json()["error"]["message"]


def test_messages_must_be_a_list_of_objects(world: World) -> None:
    assert refusal(world, messages=[])["param"] == "messages"
    for messages in ("a", ["a"], {"role": "user"}, None, 7):
        assert refusal(world, messages=messages)["param"] == "messages"


def test_what_messages_hold_reaches_the_template(engine: Engine) -> None:
    history = [
        {"role": "user", "content": "a", "name": "me"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "t"}]},
    ]
    template = (
        "{% for m in messages %}{{ m.role }}/{{ m.name }}/{{ m.content }}/{{ m.tool_call_id }}"
        "{% for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.function.arguments.x + 1 }}>"
        "{% endfor %};{% endfor %}{{ tools | length }}{{ mood }}{{ add_generation_prompt }}"
    )
    with serving(engine, request_chat_template=True) as world:
        answer = ask(
            world,
            messages=history,
            chat_template=template,
            tools=TOOLS,
            tool_choice="none",
            chat_template_kwargs={"mood": "glad"},
            add_generation_prompt=False,
            return_token_ids=True,
        )
    shown = engine.tokenizer.decode(answer["prompt_token_ids"])
    assert shown == "user/me/a/;assistant///<f2>;tool//t/1;1gladFalse"


def test_kwargs_of_a_request_go_over_the_servers(engine: Engine) -> None:
    options: dict[str, Any] = {"default_chat_template_kwargs": {"a": "x", "b": "y"}}
    with serving(engine, request_chat_template=True, **options) as world:
        answer = ask(
            world,
            chat_template="{{ a }}{{ b }}",
            chat_template_kwargs={"b": "zz"},
            return_token_ids=True,
        )
        assert engine.tokenizer.decode(answer["prompt_token_ids"]) == "xzz"
        unset = ask(
            world,
            chat_template="{{ a }}{{ b }}{{ c }}",
            chat_template_kwargs={"a": None, "b": "auto", "c": "auto"},
            return_token_ids=True,
        )
        assert engine.tokenizer.decode(unset["prompt_token_ids"]) == "xyauto"
        for name in ("chat_template", "messages", "tools", "add_generation_prompt"):
            error = refusal(world, chat_template_kwargs={name: "{{ a }}"})
            assert error["param"] == "chat_template_kwargs" and name in error["message"]
        for bad in ("{% if %}", "{{ 1/0 }}", "{{ raise_exception('no') }}", "{{ 'a' * 10**12 }}"):
            error = refusal(world, chat_template=bad)
            assert error["param"] == "chat_template" and error["message"].startswith(
                "chat_template "
            )


def test_a_final_message_can_be_continued(world: World, engine: Engine) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Once"}]
    body: dict[str, Any] = {
        "messages": messages,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    expected = engine.chat(
        messages,
        text_params(),
        continue_final_message=True,
        add_generation_prompt=False,
        use_tqdm=False,
    )
    text = only(expected).text
    assert both(world, **body) == [text]
    assert num_prompt_tokens(world, **body) == len("user:hello;assistant:Once")
    # echo puts what was continued before the answer, of each choice once.
    assert both(world, **body, echo=True)[0] == "Once" + text
    assert [t[:4] for t in both(world, n=2, **body, echo=True)] == ["Once"] * 2
    error = refusal(world, messages=messages, continue_final_message=True)
    assert error["param"] == "continue_final_message"


def test_echo_repeats_a_message_of_the_same_role_only(world: World, engine: Engine) -> None:
    text = only(engine.chat(MESSAGES, text_params(), use_tqdm=False)).text
    assert both(world, echo=True) == [text]  # the last message is the user's
    assert both(world, echo=True, add_generation_prompt=False)[0].startswith("hello")


def test_the_role_is_the_servers_or_that_of_the_last_message(engine: Engine) -> None:
    with serving(engine, response_role="bot") as world:
        for body, role in (({}, "bot"), ({"add_generation_prompt": False}, "user")):
            assert ask(world, **body)["choices"][0]["message"]["role"] == role
            assert stream(world, **body)[0]["choices"][0]["delta"]["role"] == role


def test_special_tokens_are_the_templates_unless_asked_for(world: World, engine: Engine) -> None:
    ids = [ask(world, return_token_ids=True)["prompt_token_ids"]]
    ids.append(ask(world, return_token_ids=True, add_special_tokens=True)["prompt_token_ids"])
    tokenizer = engine.tokenizer
    assert ids == [tokenizer.encode(PROMPT, special) for special in (False, True)]


# -- how long


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 5}, 5),
        ({"max_tokens": None}, 96 - len(PROMPT)),
        ({"max_tokens": 96}, 96 - len(PROMPT)),
        ({"max_tokens": None, "min_tokens": 20}, 96 - len(PROMPT)),
        ({"max_tokens": None, "truncate_prompt_tokens": 5}, 91),
    ],
)
def test_an_answer_is_as_long_as_it_may_be(world: World, body: dict[str, Any], number: int) -> None:
    assert ask(world, **body)["usage"]["completion_tokens"] == number
    events = stream(world, **body, stream_options={"include_usage": True})
    assert events[-1]["usage"]["completion_tokens"] == number


def test_too_long_prompts_and_answers_are_refused(world: World) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert refusal(world, **{name: 97})["param"] == name
        assert refusal(world, **{name: 0})["param"] == name
    long = [{"role": "user", "content": "x" * 200}]
    error = refusal(world, messages=long)
    assert "this model's maximum context length is 96 tokens" in error["message"].lower()
    assert num_prompt_tokens(world, messages=long, truncate_prompt_tokens=40) == 40
    assert num_prompt_tokens(world, messages=long, truncate_prompt_tokens=-1) == 95
    answer = ask(world, messages=long, truncate_prompt_tokens=12, return_token_ids=True)
    ids = [TEXT_TOKEN_IDS[ord(c) - 32] for c in "x;assistant:"]
    assert answer["prompt_token_ids"] == ids


def test_prompts_are_cut_on_either_side(world: World) -> None:
    whole = ask(world, return_token_ids=True)["prompt_token_ids"]
    body = {"return_token_ids": True, "truncate_prompt_tokens": 4}
    assert ask(world, **body)["prompt_token_ids"] == whole[-4:]
    assert ask(world, **body, truncation_side="right")["prompt_token_ids"] == whole[:4]


# -- the rest of the answer


def test_usage_ends_a_stream_that_asks_for_it(world: World) -> None:
    usage = ask(world, n=2)["usage"]
    *events, last = stream(world, n=2, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], usage)
    assert all(event.get("usage") is None for event in events)
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(world, n=2, stream_options=options)
    assert events[0]["usage"]["completion_tokens"] == 0
    numbers = [event["usage"]["prompt_tokens"] for event in events]
    assert numbers == [len(PROMPT)] * len(events)
    assert events[-1]["usage"] == usage
    assert "stream_options" in refusal_of_stream_options(world)["message"]


def refusal_of_stream_options(world: World) -> dict[str, Any]:
    return world.error(PATH, messages=MESSAGES, stream_options={"include_usage": True})


def test_a_server_can_add_usage_to_every_stream(engine: Engine) -> None:
    with serving(engine, force_include_usage=True, fingerprint="fp") as world:
        answer, events = ask(world), stream(world)
    assert all(event["usage"] is not None for event in events)
    assert events[-1]["usage"] == answer["usage"]
    assert events[-1]["system_fingerprint"] == answer["system_fingerprint"] == "fp"


def test_ids_of_requests_are_part_of_the_answers(world: World) -> None:
    assert ask(world, request_id="mine")["id"] == "chatcmpl-mine"
    assert {event["id"] for event in stream(world, request_id="mine")} == {"chatcmpl-mine"}
    response = world.client.post(
        PATH, json={"messages": MESSAGES, "max_tokens": 1}, headers={"X-Request-Id": "theirs"}
    )
    assert response.json()["id"] == "chatcmpl-theirs"


def test_salts_keep_caches_apart(engine: Engine) -> None:
    messages = [{"role": "user", "content": "y" * 60}]
    with serving(engine, prompt_tokens_details=True) as world:
        cached = [
            ask(world, messages=messages, max_tokens=1, cache_salt=salt)["usage"][
                "prompt_tokens_details"
            ]["cached_tokens"]
            for salt in ("a", "a", "b", None)
        ]
    assert cached[1] > 0 and (cached[0], cached[2], cached[3]) == (0, 0, 0)
