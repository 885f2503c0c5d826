"""/tokenize, /detokenize and /tokenizer_info beside transformers' tokenizer."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors
from transformers import AutoTokenizer

from server_world import World, serving
from specdec_native import Engine
from tiny_text_model import OPTIONS

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if not loop.last %};{% endif %}"
    "{% endfor %}{% if add_generation_prompt %};{{ who or 'assistant' }}:{% endif %}"
)


@pytest.fixture(scope="module")
def directory(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model; its tokenizer puts <s> before a text."""
    target = tmp_path_factory.mktemp("bos") / "llama"
    shutil.copytree(model, target)
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $0", special_tokens=[("<s>", 0)])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": "<s>"},
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        "model_max_length": 1000,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


@pytest.fixture(scope="module")
def reference(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def engine(directory: Path) -> Engine:
    return Engine(directory, **OPTIONS)


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine, tokenizer_info=True) as world:
        yield world


@pytest.mark.parametrize("adds", [None, True, False])
def test_texts(world: World, reference: Any, adds: bool | None) -> None:
    answer = world.ask("/tokenize", prompt="be quick", add_special_tokens=adds)
    ids = reference.encode("be quick", add_special_tokens=adds is not False)
    assert answer == {"count": len(ids), "max_model_len": 96, "tokens": ids, "token_strs": None}
    answer = world.ask(
        "/tokenize", prompt="be quick", add_special_tokens=adds, return_token_strs=True
    )
    assert answer["token_strs"] == reference.convert_ids_to_tokens(ids)
    long = world.ask("/tokenize", prompt="a" * 500)
    assert (long["count"], long["max_model_len"]) == (501, 96)  # longer than the model can read


@pytest.mark.parametrize("adds", [None, True, False])
@pytest.mark.parametrize(("prompts", "goes_on"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_conversations(
    world: World, reference: Any, adds: bool | None, prompts: bool, goes_on: bool, tools: Any
) -> None:
    body = {
        "messages": MESSAGES,
        "add_generation_prompt": prompts,
        "continue_final_message": goes_on,
        "tools": tools,
    }
    text = reference.apply_chat_template(
        MESSAGES,
        tools=tools,
        tokenize=False,
        add_generation_prompt=prompts,
        continue_final_message=goes_on,
    )
    answer = world.ask("/tokenize", **body, add_special_tokens=adds)
    assert answer["tokens"] == reference.encode(text, add_special_tokens=adds is True)
    assert answer["count"] == len(answer["tokens"])


def test_variables_of_the_template(world: World) -> None:
    answer = world.ask("/tokenize", messages=MESSAGES, chat_template_kwargs={"who": "me"})
    assert world.ask("/detokenize", tokens=answer["tokens"])["prompt"].endswith(";me:")


def test_a_chat_has_these_tokens(world: World) -> None:
    tokens = world.ask("/tokenize", messages=MESSAGES)["tokens"]
    answer = world.ask(
        "/v1/chat/completions", messages=MESSAGES, max_tokens=1, return_token_ids=True
    )
    assert answer["prompt_token_ids"] == tokens


def test_detokenize(world: World, reference: Any) -> None:
    for text in ("", "be quick"):
        ids = reference.encode(text)
        assert world.ask("/detokenize", tokens=ids) == {"prompt": reference.decode(ids)}


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        ("/tokenize", "prompt", {}),
        ("/tokenize", "prompt", {"prompt": "a", "messages": MESSAGES}),
        ("/tokenize", "prompt", {"prompt": [1, 2]}),
        ("/tokenize", "messages", {"messages": []}),
        ("/tokenize", "messages", {"messages": [{"content": "a"}]}),
        ("/tokenize", "chat_template", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}),
        (
            "/tokenize",
            "continue_final_message",
            {"messages": MESSAGES, "continue_final_message": True},
        ),
        ("/detokenize", "tokens", {}),
        ("/detokenize", "tokens", {"tokens": ["1"]}),
        ("/detokenize", "tokens", {"tokens": [-1]}),
        ("/detokenize", "tokens", {"tokens": [5, 160]}),
        ("/detokenize", "tokens", {"tokens": [2**80]}),
    ],
)
def test_bad_fields_are_named(world: World, path: str, param: str, body: dict[str, Any]) -> None:
    assert world.error(path, **body)["param"] == param
    assert world.error(path, 404, **{"prompt": "a", "tokens": [1]}, model="other")["param"] == (
        "model"
    )


def test_half_a_character_is_none(world: World) -> None:
    headers = {"Content-Type": "application/json"}
    response = world.client.post("/tokenize", content='{"prompt": "\\ud800"}', headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_what_is_nobodys_fault_is_the_servers(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("planted")

    for name in ("encode_batch", "decode"):
        monkeypatch.setattr(type(world.engine.tokenizer), name, fail)
    assert world.error(path, 500, prompt="a", tokens=[5])["type"] == "InternalServerError"


def test_a_template_of_the_request_runs_where_that_is_allowed(engine: Engine) -> None:
    with serving(engine, request_chat_template=True) as world:
        template = "{{ messages | length }} messages"
        answer = world.ask("/tokenize", messages=MESSAGES, chat_template=template)
        assert world.ask("/detokenize", tokens=answer["tokens"])["prompt"] == "2 messages"
        assert world.client.get("/tokenizer_info").status_code == 404


def test_the_tokenizers_configuration(world: World) -> None:
    info = world.client.get("/tokenizer_info").json()
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
    assert (info["chat_template"], info["model_max_length"]) == (TEMPLATE, 1000)


def test_a_server_without_a_tokenizer_says_so(model: Path) -> None:
    engine = Engine(model, skip_tokenizer_init=True, **OPTIONS)
    with serving(engine, tokenizer_info=True) as world:
        for path in ("/tokenize", "/detokenize"):
            message = world.error(path, prompt="a", tokens=[1])["message"]
            assert "skip_tokenizer_init" in message
        for path in ("/v1/chat/completions", "/v1/responses"):
            message = world.error(path, messages=MESSAGES, input="a")["message"]
            assert "skip_tokenizer_init" in message
        (choice,) = world.ask(
            "/v1/completions",
            prompt=[5, 6],
            max_tokens=3,
            ignore_eos=True,
            echo=True,
            logprobs=0,
            return_token_ids=True,
        )["choices"]
    assert (choice["text"], choice["prompt_token_ids"]) == ("", [5, 6])
    names = [f"token_id:{token}" for token in [5, 6, *choice["token_ids"]]]
    assert choice["logprobs"]["tokens"] == names
