"""Middles by `suffix` of /v1/completions and by /infill: prompts, ends, streams, refusals.

scripted_model makes a tiny model write them; a random one shows that drafts change nothing.
"""

import json
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tokenizers

import scripted_model
from completion_requests import PATH, merged
from paced_engine import Pace, paced_engine
from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import Engine, SamplingParams
from specdec_native.requests.group import RequestGroup
from specdec_native.requests.request import Request
from specdec_native.text.tokenizer import Tokenizer
from specdec_serve.http import infill
from tiny_text_model import OPTIONS, add_byte_text

TOKENS = (
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>"),
)
INFILL = "/infill"
GAP: dict[str, Any] = {"input_prefix": "def f(", "input_suffix": "): return x"}
SUFFIX: dict[str, Any] = {"prompt": "def f(", "suffix": "): return x"}
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module")
def coder(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with Qwen2.5-Coder's fill-in tokens, which are not special there either."""
    directory = add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("coder") / "llama")
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def engine(coder: Path) -> Iterator[Engine]:
    with Engine(coder, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine, prompt_tokens_details=True) as world:
        yield world


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Says:
    marks = {token: engine.tokenizer.convert_tokens_to_ids(token) for token in TOKENS}
    return scripted_model.says(monkeypatch, marks)


def prompt_of(tokenizer: Tokenizer, prefix: str, suffix: str, before: str = "") -> list[int]:
    """As Qwen2.5-Coder's README writes it."""
    text = f"{before}<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"
    return tokenizer.encode(text, add_special_tokens=False)


def stream_of(world: World, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream of /infill, which has no [DONE]."""
    with world.client.stream("POST", INFILL, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# -- suffix of /v1/completions


@pytest.mark.parametrize("end", ["<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "</s>"])
def test_the_answer_is_the_middle(world: World, engine: Engine, says: Says, end: str) -> None:
    says(f"x, y{end}" if end != "</s>" else "x, y")
    body = {**SUFFIX, **GREEDY, "return_token_ids": True, "logprobs": 1}
    answer = world.ask(PATH, **body)
    (choice,) = answer["choices"]
    assert choice["text"] == "x, y"
    assert choice["finish_reason"] == "stop"
    assert choice["prompt_token_ids"] == prompt_of(engine.tokenizer, "def f(", "): return x")
    assert answer["usage"]["prompt_tokens"] == len(choice["prompt_token_ids"])
    assert answer["usage"]["completion_tokens"] == len("x, y") + 1 == len(choice["token_ids"])
    assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
    given = {name: value for name, value in choice.items() if value is not None}
    assert merged(world.events(PATH, **body)) == {0: given}


def test_the_same_tokens_go_on_without_a_suffix(world: World, says: Says) -> None:
    says("x<|fim_pad|>y")
    for body in ({}, {"suffix": ""}):
        answer = world.ask(PATH, prompt="def f(", **body, **GREEDY)
        assert answer["choices"][0]["text"] == "x<|fim_pad|>y"
        assert answer["usage"]["prompt_tokens"] == len("def f(")


def test_several_prompts_and_completions(world: World, engine: Engine) -> None:
    body: dict[str, Any] = {"seed": 3, "max_tokens": 9, "n": 2, "suffix": "end"}
    answer = world.ask(PATH, prompt=["ab", "cd"], **body)
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 4
    expected = []
    for prefix in ("ab", "cd"):
        prompt = engine.infill_prompt(prefix, "end")
        params = SamplingParams(seed=3, max_tokens=9, n=2, stop_token_ids=prompt.stop_token_ids)
        (output,) = engine.generate(prompt.token_ids, params, use_tqdm=False)
        expected += [each.text for each in output.outputs]
    assert texts == expected


def test_the_openai_clients_suffix(world: World, says: Says) -> None:
    says("x, y<|fim_pad|>")
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client:
        answer = client.completions.create(model=MODEL, **SUFFIX)
    assert answer.choices[0].text == "x, y"


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("echo", {**SUFFIX, "echo": True}),
        ("suffix", {**SUFFIX, "prompt": [5, 6]}),
        ("suffix", {**SUFFIX, "prompt": [[5, 6], [7]]}),
        ("truncate_prompt_tokens", {**SUFFIX, "truncate_prompt_tokens": 9}),
        ("prompt", {**SUFFIX, "prompt": "a" * 97}),
        ("prompt", {**SUFFIX, "prompt": "a" * 60, "suffix": "b" * 60}),
        ("suffix", {**SUFFIX, "suffix": "b" * 2000}),
        ("suffix", {**SUFFIX, "suffix": 5}),
    ],
)
def test_what_a_suffix_cannot_have_is_named(world: World, param: str, body: Any) -> None:
    error = world.error(PATH, **body)
    assert error["param"] == param
    if param == "prompt" or body["suffix"] == "b" * 2000:
        assert "maximum context length is 96 tokens" in error["message"]


def test_half_a_character_is_named(world: World) -> None:
    raw = json.dumps({**SUFFIX, "suffix": "\ud800"}).encode()
    response = world.client.post(PATH, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "suffix"


def test_drafts_change_no_middle(coder: Path, world: World) -> None:
    """Of n-grams, which know the texts on both sides, and of suffixes."""
    drafters = [{"method": "ngram", "prompt_lookup_min": 1}, {"method": "suffix"}]
    fixed = {"drafters": drafters, "num_speculative_tokens": 4, "draft_length_policy": "fixed"}
    body = {"prompt": "ab ab ab", "suffix": "ab ab", "max_tokens": 40, "logprobs": 2, "seed": 1}
    with (
        Engine(coder, **OPTIONS, speculative_config=fixed) as engine,
        serving(engine, acceptance_metrics="summary") as drafting,
    ):
        for temperature in (0, 1):
            answer = drafting.ask(PATH, **body, temperature=temperature)
            plain = world.ask(PATH, **body, temperature=temperature)
            assert answer["choices"] == plain["choices"]
        assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


# -- /infill


@pytest.mark.parametrize(
    ("text", "body", "content", "stop_type", "word"),
    [
        ("x, y<|fim_pad|>z", {}, "x, y", "eos", ""),
        ("x, y", {"n_predict": -1}, "x, y", "eos", ""),
        ("x, y", {"n_predict": 2}, "x,", "limit", ""),
        ("x, y; z", {"stop": ["y;"]}, "x, ", "word", "y;"),
        ("x, y", {"n_predict": 0}, "", "limit", ""),
    ],
)
def test_answers_have_the_members_of_llama_cpp(
    world: World, says: Says, text: str, body: Any, content: str, stop_type: str, word: str
) -> None:
    says(text)
    answer = world.ask(INFILL, **GAP, **GREEDY, **body)
    assert answer["content"] == content and answer["stop"] is True
    assert answer["stop_type"] == stop_type and answer["stopping_word"] == word
    assert answer["tokens_evaluated"] == len(GAP["input_prefix"] + GAP["input_suffix"]) + 3
    assert answer["index"] == 0 and answer["model"] == MODEL and answer["truncated"] is False
    timings = answer["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == answer["tokens_evaluated"]
    assert timings["predicted_n"] == answer["tokens_predicted"]
    assert timings["prompt_ms"] > 0

    events = stream_of(world, **GAP, **GREEDY, **body)
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert "".join(event["content"] for event in events) == content
    varying = ("content", "timings")
    assert {name: value for name, value in events[-1].items() if name not in varying} == {
        name: value for name, value in answer.items() if name not in varying
    }
    counts = [event["tokens_predicted"] for event in events]
    assert counts == sorted(counts)


def test_the_prompt_goes_behind_the_prefix_and_files_before(
    world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[list[int]] = []
    start = engine.start

    def recording(requests: Sequence[Request], **options: Any) -> RequestGroup:
        prompts.extend([*each.prompt_token_ids] for each in requests)
        return start(requests, **options)

    monkeypatch.setattr(engine, "start", recording)
    tokenizer = engine.tokenizer
    world.ask(INFILL, **GAP, prompt="x,", n_predict=1)
    assert prompts.pop() == prompt_of(tokenizer, "def f(x,", "): return x")
    files = [{"filename": "a.py", "text": "x = 1\n"}, {"text": "y"}]
    world.ask(INFILL, **GAP, input_extra=files, n_predict=1)
    before = "<|repo_name|>project\n<|file_sep|>a.py\nx = 1\n<|file_sep|>tmp\ny<|file_sep|>file\n"
    assert prompts.pop() == prompt_of(tokenizer, "def f(", "): return x", before)


def test_a_prompt_without_an_answer_is_cached(world: World, engine: Engine) -> None:
    engine.reset_prefix_cache()
    gap = {**GAP, "input_suffix": "): return x + y + z"}
    assert world.ask(INFILL, **gap, n_predict=0)["timings"]["cache_n"] == 0
    assert world.ask(INFILL, **gap, n_predict=1)["timings"]["cache_n"] == 16


def test_salts_separate_cached_beginnings(world: World) -> None:
    gap = {**GAP, "input_suffix": "): return x - y - z"}

    def num_cached(salt: str) -> int:
        whole = world.ask(PATH, prompt="def f(", suffix=gap["input_suffix"], cache_salt=salt)
        by_infill: int = world.ask(INFILL, **gap, n_predict=0, cache_salt=salt)["timings"][
            "cache_n"
        ]
        assert by_infill == 16  # the same prompt as that of the completion
        number: int = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
        return number

    assert num_cached("a") == num_cached("b") == 0
    assert num_cached("a") == 16


def test_probabilities_are_those_of_a_completion(world: World, says: Says) -> None:
    says("x, y<|fim_pad|>")
    body = {**GREEDY, "seed": 1}
    asked = {**SUFFIX, "logprobs": 3, "return_token_ids": True}
    (choice,) = world.ask(PATH, **asked, **body)["choices"]
    answer = world.ask(INFILL, **GAP, **body, n_probs=3)
    tokens = answer["completion_probabilities"]
    assert [token["id"] for token in tokens] == choice["token_ids"]
    assert [token["token"] for token in tokens] == choice["logprobs"]["tokens"]
    assert b"".join(bytes(token["bytes"]) for token in tokens) == b"x, y"
    assert [token["logprob"] for token in tokens] == choice["logprobs"]["token_logprobs"]
    for token, likeliest in zip(tokens, choice["logprobs"]["top_logprobs"], strict=True):
        top = token["top_logprobs"]
        assert len(top) == len({each["id"] for each in top}) == 3
        assert {each["logprob"] for each in top} <= {*likeliest.values()}
        assert [each["logprob"] for each in top] == sorted(likeliest.values(), reverse=True)[:3]
    events = stream_of(world, **GAP, **body, n_probs=3)
    assert [token for event in events for token in event["completion_probabilities"]] == tokens
    assert "completion_probabilities" not in world.ask(INFILL, **GAP, **body)
    assert "completion_probabilities" not in world.ask(INFILL, **GAP, n_predict=0, n_probs=3)


def test_only_the_fields_that_were_asked_for(world: World, says: Says) -> None:
    says("x, y")
    fields = ["content", "timings/predicted_n", "timings/none", "content/x", "none", "truncated"]
    expected = {"content": "x, y", "timings/predicted_n": 5, "truncated": False}
    assert world.ask(INFILL, **GAP, response_fields=fields) == expected
    *pieces, last = stream_of(world, **GAP, response_fields=fields)
    assert last.pop("content") == "x, y"[len("".join(each["content"] for each in pieces)) :]
    assert last == {name: value for name, value in expected.items() if name != "content"}
    assert all("tokens_evaluated" in each for each in pieces)
    assert "model" in world.ask(INFILL, **GAP, response_fields=[])


@pytest.mark.parametrize("stream", [False, True])
def test_a_time_limit_ends_the_answer_at_a_line(
    coder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The clock goes on by a second behind the first token, whose step it waits for."""
    pace = Pace()
    has_begun = False

    def monotonic() -> float:
        nonlocal has_begun
        now = float(has_begun)
        has_begun = True
        pace.gate.set()
        return now

    clock = types.SimpleNamespace(monotonic=monotonic, time=time.time)
    monkeypatch.setattr(infill, "time", clock)
    encode = engine.tokenizer.encode
    scripted_model.says(monkeypatch, encode=lambda text: encode(text, False))("x, y\nz\nz")
    with paced_engine(coder, pace) as paced, serving(paced) as world:
        for limit, content in ((500, "x, y\n"), (1500, "x, y\nz\nz"), (0, "x, y\nz\nz")):
            if limit > 0:
                pace.gate.clear()
            has_begun = False
            body = {**GAP, **GREEDY, "t_max_predict_ms": limit, "n_probs": 1}
            pieces = stream_of(world, **body) if stream else [world.ask(INFILL, **body)]
            assert "".join(piece["content"] for piece in pieces) == content
            assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            last = pieces[-1]
            assert last["stop_type"] == ("limit" if limit == 500 else "eos")
            assert last["has_new_line"] is True and last["timings"]["predicted_ms"] > 0
            tokens = [token for piece in pieces for token in piece["completion_probabilities"]]
            end = "" if limit == 500 else "</s>"
            assert "".join(token["token"] for token in tokens) == content + end


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input_prefix", {"input_suffix": "a"}),
        ("input_suffix", {"input_prefix": "a"}),
        ("input_extra", {**GAP, "input_extra": {"text": "a"}}),
        ("input_extra", {**GAP, "input_extra": [{"filename": "a"}]}),
        ("input_extra", {**GAP, "input_extra": [{"text": "a"}, {"text": "b" * 2000}]}),
        ("prompt", {**GAP, "prompt": [1]}),
        ("n_predict", {**GAP, "n_predict": -2}),
        ("n_predict", {**GAP, "n_predict": 97}),
        ("n_probs", {**GAP, "n_probs": -1}),
        ("n_probs", {**GAP, "n_probs": 100}),
        ("response_fields", {**GAP, "response_fields": "content"}),
        ("t_max_predict_ms", {**GAP, "t_max_predict_ms": "soon"}),
        ("n", {**GAP, "n": 2}),
        ("temperature", {**GAP, "temperature": -1}),
        ("prompt_logprobs", {**GAP, "prompt_logprobs": 1}),
        ("input_prefix", {**GAP, "input_prefix": "a" * 90}),
        ("input_suffix", {**GAP, "input_suffix": "a" * 2000}),
    ],
)
def test_bad_fields_are_named(world: World, param: str, body: dict[str, Any]) -> None:
    error = world.error(INFILL, **body)
    assert error["param"] == param
    assert param in error["message"]


def test_a_model_without_fill_in_tokens_says_so(engine: Engine, model: Path) -> None:
    with Engine(model, **OPTIONS) as other, serving(other) as world:
        for path, body, param in ((PATH, SUFFIX, "suffix"), (INFILL, GAP, "input_suffix")):
            error = world.error(path, **body)
            assert error["param"] == param
            assert error["message"].startswith(f"{param} is not supported by this model")
            assert world.error(path, **body, stream=True)["param"] == param
    with Engine(model, **OPTIONS, skip_tokenizer_init=True) as other, serving(other) as world:
        assert "tokenizer" in world.error(PATH, **SUFFIX)["message"]


def test_the_endpoint_needs_a_key(engine: Engine) -> None:
    with serving(engine, api_keys=("secret",)) as world:
        assert world.error(INFILL, 401, **GAP)["type"] == "Unauthorized"
        headers = {"authorization": "Bearer secret"}
        assert httpx.post(f"{world.url}{INFILL}", json=GAP, headers=headers).status_code == 200
