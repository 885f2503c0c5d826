"""/v1/completions: every field, alone and with others, whole and streamed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from completion_requests import PATH, PROMPT, SAMPLING, ids_of, offline, whole_and_streamed
from server_world import World, serving
from specdec_native import Engine, SamplingParams
from specdec_serve.http import completions
from specdec_serve.http.protocol import body as body_module
from specdec_serve.http.protocol.completions import CompletionRequest
from tiny_text_model import OPTIONS


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine, prompt_tokens_details=True, fingerprint="fp") as world:
        yield world


@pytest.mark.parametrize(
    "prompt",
    [PROMPT, [PROMPT, "abc"], ids_of(PROMPT), [ids_of(PROMPT), ids_of("abc"), ids_of("x")]],
    ids=["text", "texts", "ids", "lists of ids"],
)
@pytest.mark.parametrize("n", [1, 3])
def test_every_form_of_prompt(world: World, engine: Engine, prompt: Any, n: int) -> None:
    choices = whole_and_streamed(world, prompt=prompt, n=n)
    several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    parts = [part for one in several for part in offline(engine, one, n=n).outputs]
    assert [choice["text"] for choice in choices] == [part.text for part in parts]
    assert all(choice["finish_reason"] == "length" for choice in choices)
    usage = world.ask(PATH, prompt=prompt, n=n, **SAMPLING)["usage"]
    assert usage["prompt_tokens"] == sum(len(one) for one in several)
    assert usage["completion_tokens"] == 12 * len(parts)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("logprobs", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_the_engines(
    world: World, engine: Engine, logprobs: int, temperature: float
) -> None:
    (choice,) = whole_and_streamed(world, prompt=PROMPT, logprobs=logprobs, temperature=temperature)
    shown = choice["logprobs"]
    part = offline(engine, PROMPT, logprobs=max(1, logprobs), temperature=temperature).outputs[0]
    assert part.logprobs is not None
    rows = list(zip(part.token_ids, part.logprobs, strict=True))
    assert shown["token_logprobs"] == [row[token].logprob for token, row in rows]
    assert shown["tokens"] == list(part.text)
    assert shown["text_offset"] == list(range(12))
    for (token, row), top in zip(rows, shown["top_logprobs"], strict=True):
        best = sorted((entry.logprob for entry in row.values()), reverse=True)[:logprobs]
        assert sorted(top.values(), reverse=True)[:logprobs] == best or "" in top
        assert len(top) == 1 or logprobs > 0
        if temperature == 0:
            assert row[token].logprob in top.values()


@pytest.mark.parametrize("prompt", [PROMPT, ids_of(PROMPT)], ids=["text", "ids"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_echo_comes_before_the_answer(
    world: World, engine: Engine, prompt: Any, logprobs: int | None
) -> None:
    (choice,) = whole_and_streamed(world, prompt=prompt, echo=True, logprobs=logprobs)
    output = offline(engine, prompt, logprobs=2, prompt_logprobs=2)
    part = output.outputs[0]
    assert choice["text"] == PROMPT + part.text
    if logprobs is None:
        assert choice["logprobs"] is None
        return
    shown = choice["logprobs"]
    assert output.prompt_logprobs is not None and part.logprobs is not None
    expected = [
        None if row is None else row[token].logprob
        for token, row in zip(ids_of(PROMPT), output.prompt_logprobs, strict=True)
    ]
    expected += [row[t].logprob for t, row in zip(part.token_ids, part.logprobs, strict=True)]
    assert shown["token_logprobs"] == expected
    assert shown["token_logprobs"][0] is None and shown["top_logprobs"][0] is None
    assert "".join(shown["tokens"]) == choice["text"]
    assert shown["text_offset"] == list(range(len(choice["text"])))
    assert all(1 <= len(top) <= logprobs + 1 for top in shown["top_logprobs"][1:])


def test_echo_of_several_choices(world: World) -> None:
    choices = whole_and_streamed(
        world, prompt=["abc", "be"], n=2, echo=True, logprobs=1, return_token_ids=True
    )
    assert [choice["text"][:2] for choice in choices] == ["ab", "ab", "be", "be"]
    for choice, prompt in zip(choices, ["abc", "abc", "be", "be"], strict=True):
        assert choice["prompt_token_ids"] == ids_of(prompt)
        assert len(choice["token_ids"]) == 12
        assert len(choice["logprobs"]["tokens"]) == len(prompt) + 12


@pytest.mark.parametrize("prompt", [PROMPT, ids_of(PROMPT)], ids=["text", "ids"])
def test_the_prompt_alone(world: World, prompt: Any) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 1}
    (choice,) = whole_and_streamed(world, **body, return_token_ids=True)
    assert (choice["text"], choice["token_ids"]) == (PROMPT, [])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT)
    usage = world.ask(PATH, **body)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), 0)


def test_prompt_logprobs_stand_in_the_choice(world: World, engine: Engine) -> None:
    output = offline(engine, PROMPT, prompt_logprobs=2)
    assert output.prompt_logprobs is not None
    (choice,) = world.ask(PATH, prompt=PROMPT, prompt_logprobs=2, **SAMPLING)["choices"]
    shown = choice["prompt_logprobs"]
    assert shown[0] is None
    for row, expected in zip(shown[1:], output.prompt_logprobs[1:], strict=True):
        assert expected is not None
        assert row == {
            str(token): {
                "logprob": entry.logprob,
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token, entry in expected.items()
        }
    several = world.ask(PATH, prompt=["abc", "be"], prompt_logprobs=0)["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in several] == [3, 2]
    assert world.error(PATH, prompt="a", prompt_logprobs=1, stream=True)["param"] == (
        "prompt_logprobs"
    )


def test_tokens_by_their_ids(world: World, engine: Engine) -> None:
    (choice,) = whole_and_streamed(
        world,
        prompt=PROMPT,
        echo=True,
        logprobs=1,
        return_tokens_as_token_ids=True,
        return_token_ids=True,
    )
    token_ids = [*ids_of(PROMPT), *offline(engine, PROMPT).outputs[0].token_ids]
    assert choice["prompt_token_ids"] + choice["token_ids"] == token_ids
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in token_ids]
    assert choice["logprobs"]["text_offset"] == list(range(len(token_ids)))
    for token, top in zip(token_ids[1:], choice["logprobs"]["top_logprobs"][1:], strict=True):
        assert f"token_id:{token}" in top


def test_impossible_tokens_have_a_number(model: Path) -> None:
    engine = Engine(model, **OPTIONS, logprobs_mode="processed_logprobs")
    with serving(engine) as world:
        body = {**SAMPLING, "allowed_token_ids": ids_of("ab"), "logprobs": 5}
        (choice,) = world.ask(PATH, prompt="abc", **body, return_tokens_as_token_ids=True)[
            "choices"
        ]
    for top in choice["logprobs"]["top_logprobs"]:
        assert sorted(top.values())[:3] == [-9999.0] * 3
        assert max(top.values()) > -100


def test_all_logprobs_come_where_there_is_no_limit(model: Path) -> None:
    engine = Engine(model, **OPTIONS, max_logprobs=-1)
    with serving(engine) as world:
        body = {"prompt": "abc", "logprobs": -1, "max_tokens": 2, "ignore_eos": True}
        (choice,) = world.ask(PATH, **body, return_tokens_as_token_ids=True)["choices"]
    sizes = [len(top) for top in choice["logprobs"]["top_logprobs"]]
    assert sizes == [engine.model_info().vocab_size] * 2


@pytest.mark.parametrize("include", [False, True])
def test_any_number_of_stop_strings(world: World, engine: Engine, include: bool) -> None:
    text = offline(engine, PROMPT).outputs[0].text
    stops = ["never!", text[7:9], "neither", "nor", "these"]
    end = text.index(text[7:9])
    (choice,) = whole_and_streamed(
        world, prompt=PROMPT, stop=stops, include_stop_str_in_output=include, logprobs=0
    )
    assert choice["text"] == text[: end + 2 * include]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", text[7:9])
    assert choice["logprobs"]["text_offset"] == list(range(end + 2))
    (choice,) = whole_and_streamed(world, prompt=PROMPT, stop=stops, min_tokens=12)
    assert choice["text"] == text


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {str(ids_of("q")[0]): 100}},
        {"stop_token_ids": ids_of("abcdefghijklm"), "min_tokens": 3},
        {"temperature": 0.5, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "seed": -7},
        {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2},
        {"bad_words": ["a", "e", "t"]},
        {"allowed_token_ids": ids_of("xyz"), "num_speculative_tokens": 0},
    ],
    ids="+".join,
)
def test_sampling_is_the_engines(world: World, engine: Engine, params: dict[str, Any]) -> None:
    (choice,) = whole_and_streamed(world, prompt=PROMPT, **params)
    part = offline(engine, PROMPT, **params).outputs[0]
    assert choice["text"] == part.text
    assert (choice["finish_reason"], choice["stop_reason"]) == (
        part.finish_reason,
        part.stop_reason,
    )


def test_prompts_are_cut_on_either_side(world: World, engine: Engine) -> None:
    for side, kept in (("left", PROMPT[-4:]), ("right", PROMPT[:4])):
        for prompt in (PROMPT, ids_of(PROMPT)):
            (choice,) = whole_and_streamed(
                world,
                prompt=prompt,
                truncate_prompt_tokens=4,
                truncation_side=side,
                echo=True,
                return_token_ids=True,
            )
            assert choice["prompt_token_ids"] == ids_of(kept)
            assert choice["text"] == kept + offline(engine, kept).outputs[0].text
    answer = world.ask(PATH, prompt="ab" * 100, truncate_prompt_tokens=-1, max_tokens=9)
    assert answer["usage"]["prompt_tokens"] == 95
    assert answer["choices"][0]["finish_reason"] == "length"


def test_what_is_ignored(world: World, engine: Engine) -> None:
    extra = {"best_of": 7, "guided_json": {}, "guided_regex": "a", "user": "u", "whatever": [1]}
    nulls = dict.fromkeys(["n", "stop", "logit_bias", "echo", "logprobs", "suffix", "stream"])
    answer = world.ask(PATH, prompt="abc", **SAMPLING, **extra, **nulls)
    assert answer["choices"][0]["text"] == offline(engine, "abc").outputs[0].text


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [[]]}),
        ("prompt", {"prompt": ["a"] * 1025}),
        ("prompt", {"prompt": [[1]] * 1025}),
        ("prompt", {"prompt": [100_000]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [[-1]]}),
        ("prompt", {"prompt": [-1], "echo": True}),
        ("prompt", {"prompt": [2**70], "echo": True}),
        ("prompt", {"prompt": "a" * 96}),
        ("prompt", {"prompt": [True]}),
        ("prompt", {"prompt": ["a", 1]}),
        ("prompt", {"prompt": None}),
        ("n", {"n": 0}),
        ("n", {"n": 1000, "prompt": ["a"] * 100}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 97}),
        ("max_tokens", {"max_tokens": -1}),
        ("min_tokens", {"max_tokens": 3, "min_tokens": 4}),
        ("suffix", {"suffix": "end"}),
        ("logprobs", {"logprobs": -2}),
        ("logprobs", {"logprobs": 21}),
        ("logprobs", {"logprobs": -1}),
        ("logprobs", {"logprobs": "many"}),
        ("prompt_logprobs", {"prompt_logprobs": -2}),
        ("prompt_logprobs", {"prompt_logprobs": -1}),
        ("use_beam_search", {"use_beam_search": True}),
        ("cache_salt", {"cache_salt": "a/b"}),
        ("cache_salt", {"cache_salt": "a" * 129}),
        ("cache_salt", {"cache_salt": ""}),
        ("num_speculative_tokens", {"num_speculative_tokens": -1}),
        ("num_speculative_tokens", {"num_speculative_tokens": "off"}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options", {"stream_options": {"continuous_usage_stats": None}}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 97}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
        ("logit_bias", {"logit_bias": {"1000000": 1}}),
        ("logit_bias", {"logit_bias": {"x": 1}}),
        ("stop", {"stop": [""]}),
        ("priority", {"priority": 1}),
        ("priority", {"priority": "high"}),
    ],
)
def test_bad_fields_are_named(world: World, param: str, body: dict[str, Any]) -> None:
    error = world.error(PATH, **{"prompt": "abc", **body})
    assert error["type"] == "BadRequestError"
    assert error["param"] == param
    assert param in error["message"]


def test_too_long_a_prompt_has_the_words_clients_look_for(world: World) -> None:
    message = world.error(PATH, prompt="a" * 96)["message"]
    assert "this model's maximum context length is 96 tokens" in message.lower()


def test_usage_in_streams(world: World) -> None:
    body = {"prompt": ["abc", "be"], "n": 2, **SAMPLING}
    for unasked in (None, {}, {"include_usage": False, "continuous_usage_stats": True}):
        events = world.events(PATH, **body, stream_options=unasked)
        assert not any("usage" in event for event in events)
    *chunks, last = world.events(PATH, **body, stream_options={"include_usage": True})
    assert all(event["usage"] is None and len(event["choices"]) == 1 for event in chunks)
    assert last["choices"] == [] and last["system_fingerprint"] == "fp"
    whole = world.ask(PATH, **body)
    assert last["usage"] | {"prompt_tokens_details": None} == whole["usage"] | {
        "prompt_tokens_details": None
    }
    assert whole["system_fingerprint"] == "fp"
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = world.events(PATH, **body, stream_options=options)
    seen: dict[int, int] = {}
    for event in chunks:
        index, usage = event["choices"][0]["index"], event["usage"]
        assert usage["prompt_tokens"] == [3, 3, 2, 2][index]
        assert usage["completion_tokens"] > seen.get(index, 0)
        seen[index] = usage["completion_tokens"]
    assert seen == dict.fromkeys(range(4), 12)
    assert last["usage"]["completion_tokens"] == 48


def test_the_fingerprint_ends_each_choice_without_usage(world: World) -> None:
    for event in world.events(PATH, prompt=["abc", "be"], **SAMPLING):
        has_ended = event["choices"][0]["finish_reason"] is not None
        assert (event.get("system_fingerprint") == "fp") is has_ended


def test_cached_tokens_are_told(world: World) -> None:
    prompts = ["a cached prompt " * 4, "another prompt, cached " * 3]
    body = {"prompt": prompts, "max_tokens": 1}
    world.ask(PATH, **body)
    cached = [len(prompt) // 16 * 16 for prompt in prompts]
    cached = [c - 16 if c == len(p) else c for c, p in zip(cached, prompts, strict=True)]
    details = world.ask(PATH, **body)["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": sum(cached)}


def test_a_salt_keeps_cached_tokens_apart(world: World) -> None:
    body = {"prompt": "shared by those who know the salt", "max_tokens": 1}

    def num_cached(**salt: Any) -> int:
        usage = world.ask(PATH, **body, **salt)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert num_cached(cache_salt="mine") == 0
    assert num_cached(cache_salt="mine") == 32
    assert num_cached(cache_salt="theirs") == num_cached() == 0
    assert num_cached() == 32


def test_priorities_need_a_scheduler_that_knows_them(model: Path, engine: Engine) -> None:
    expected = offline(engine, PROMPT).outputs[0].text
    with serving(Engine(model, **OPTIONS, scheduling_policy="priority")) as world:
        for priority in (0, -3, 7):
            (choice,) = world.ask(PATH, prompt=PROMPT, priority=priority, **SAMPLING)["choices"]
            assert choice["text"] == expected


def test_defaults_are_those_of_the_checkpoint(model: Path, engine: Engine) -> None:
    defaults: dict[str, Any] = {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.5,
        "temperature": 0.3,
    }
    configured = Engine(model, **OPTIONS, override_generation_config=defaults)
    fields: dict[str, Any] = {"ignore_eos": True, "seed": 5}
    with serving(configured) as world:
        (choice,) = world.ask(PATH, prompt=PROMPT, **fields)["choices"]
        (other,) = world.ask(PATH, prompt=PROMPT, **fields, repetition_penalty=1.0)["choices"]
    (expected,) = engine.generate(
        PROMPT, SamplingParams(**fields, **defaults, max_tokens=16), use_tqdm=False
    )
    assert choice["text"] == expected.outputs[0].text != other["text"]


def test_prompts_that_take_several_steps(model: Path, engine: Engine) -> None:
    small = Engine(model, **OPTIONS, max_num_batched_tokens=16, max_num_seqs=4)
    prompts = [PROMPT * 4, "abc", PROMPT * 3]
    with serving(small) as world:
        choices = whole_and_streamed(world, prompt=prompts, echo=True, logprobs=1)
        body = {**SAMPLING, "prompt": prompts, "logprobs": 0, "max_tokens": 3}
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = world.events(PATH, **body, stream_options=options)
    for choice, prompt in zip(choices, prompts, strict=True):
        assert choice["text"] == prompt + offline(engine, prompt).outputs[0].text
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["text"])
    assert all(event["choices"][0]["logprobs"]["tokens"] for event in chunks)
    assert last["usage"]["total_tokens"] == sum(map(len, prompts)) + 9


def test_the_answers_id_is_the_clients(world: World) -> None:
    body = {"prompt": "abc", "max_tokens": 1}
    assert world.ask(PATH, **body, request_id="mine")["id"] == "cmpl-mine"
    answer = world.client.post(PATH, json=body, headers={"X-Request-Id": "header"}).json()
    assert answer["id"] == "cmpl-header"
    first, second = (world.ask(PATH, **body)["id"] for _ in range(2))
    assert first != second and first.startswith("cmpl-")


@pytest.mark.parametrize(
    ("body", "is_quick"),
    [
        ({"prompt": "abc"}, True),
        ({"prompt": [1, 2, 3], "n": 16}, True),
        ({"prompt": "abc", "n": 17}, False),  # each completion is made
        ({"prompt": ["abc"]}, True),
        ({"prompt": [[1, 2], [3]]}, False),
    ],
)
def test_only_little_is_done_on_the_event_loop(
    world: World, body: dict[str, Any], is_quick: bool
) -> None:
    request = CompletionRequest(**body)
    for size, expected in (("100", is_quick), ("100000", False)):
        http = HTTPConnection({"type": "http", "headers": [(b"content-length", size.encode())]})
        assert completions.call_of(request, world.service, http).is_quick == expected


def test_fields_that_are_not_known_are_warned_of_once(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "_warned", set())
    unknown = {"best_of": 2, "guided_json": {}, "temprature": 1, "nothing": None}
    for _ in range(2):
        world.ask(PATH, prompt="a", max_tokens=1, **unknown)
        world.ask(
            PATH,
            prompt="a",
            max_tokens=1,
            stream_options=None,
            response_format={"type": "text", "x": 1},
        )
    warned = [re.findall("'(.*)'", record.getMessage()) for record in caplog.records]
    assert warned == [["best_of"], ["guided_json"], ["temprature"], ["x"]]
    for i in range(500):
        CompletionRequest.model_validate({"prompt": "a", f"f{i}": 1})
    assert len(caplog.records) == 100
