"""Conversations and tokenizers as vLLM's scripts have them, beside transformers'."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_text_model
from specdec_native.text.tokenizer import Tokenizer

# As the templates of Qwen2.5 and of Hermes write calls: content as it is, arguments as JSON.
TOJSON = """\
{%- for m in messages %}
    {{- "<" + m.role + ">" }}{{ m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}{{ "}" }}
    {%- endfor %}
    {%- if m.tool_calls is defined %}!{% endif %}
    {%- if m.tool_call_id is defined %}#{{ m.tool_call_id }}{% endif %}
    {%- if m.reasoning_content is defined %}({{ m.reasoning_content }}){% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""
CONCATENATES = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "function": {"name": "f", "arguments": arguments}, **more}


def conversation(**assistant: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", **assistant},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "hot"}]},
    ]


# An assistant's message in OpenAI's form, and what vLLM's template is given for it.
HISTORIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a string of JSON": (
        {"content": None, "tool_calls": [call('{"city": "Dällas", "n": 2}', type="function")]},
        {"content": "", "tool_calls": [call({"city": "Dällas", "n": 2})]},
    ),
    "a dict": (
        {"content": "so", "tool_calls": [call({"a": 1})]},
        {"content": "so", "tool_calls": [call({"a": 1})]},
    ),
    "malformed": (
        {"content": None, "tool_calls": [call('{"city": '), call("{}")]},
        {"content": "", "tool_calls": [call({}), call({})]},
    ),
    "no object": (
        {"tool_calls": [call("[1]"), call("42"), call([1])]},
        {"content": "", "tool_calls": [call({}), call({}), call({})]},
    ),
    "no arguments": (
        {"tool_calls": [call(""), call(None)]},
        {"content": "", "tool_calls": [call({}), call({})]},
    ),
    "no calls": ({"content": "a", "tool_calls": []}, {"content": "a"}),
    "None for calls": ({"content": "a", "tool_calls": None}, {"content": "a"}),
    "reasoning": (
        {"content": "a", "reasoning": "hm"},
        {"content": "a", "reasoning": "hm", "reasoning_content": "hm"},
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    empty = tmp_path_factory.mktemp("empty")
    return tiny_text_model.add_text(empty, tmp_path_factory.mktemp("text") / "files")


@pytest.fixture(scope="module")
def ours(files: Path) -> Tokenizer:
    return Tokenizer.from_directory(files)


@pytest.fixture(scope="module")
def theirs(files: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(files / "tokenizer.json"), eos_token="</s>"
    )


@pytest.mark.parametrize("template", [TOJSON, CONCATENATES])
@pytest.mark.parametrize("name", list(HISTORIES))
def test_openais_form_is_rendered_as_vllm_does(
    ours: Tokenizer, theirs: Any, name: str, template: str
) -> None:
    given, processed = HISTORIES[name]
    messages = conversation(**given)
    untouched = copy.deepcopy(messages)
    plain = conversation(**processed)
    plain[-1]["content"] = "hot"
    expected = theirs.apply_chat_template(
        plain, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    assert ours.render_chat(messages, chat_template=template) == expected
    assert messages == untouched
    assert "None" not in expected


@pytest.mark.parametrize(
    "calls", [["f"], [{"type": "custom", "function": {"name": "f"}}], [{"name": "f"}]]
)
def test_calls_that_are_none_are_refused(ours: Tokenizer, calls: list[Any]) -> None:
    with pytest.raises(ValueError, match=r'messages\[1\]\["tool_calls"\]'):
        ours.render_chat(conversation(tool_calls=calls), chat_template=TOJSON)


def test_a_chat_template_is_applied_as_in_transformers(ours: Tokenizer, theirs: Any) -> None:
    theirs.chat_template = tiny_text_model.CHAT_TEMPLATE
    one: list[Any] = [{"role": "user", "content": "hi"}]
    for messages in (one, [one, [*one, *one]]):
        expected = theirs.apply_chat_template(messages, return_dict=False)
        assert ours.apply_chat_template(messages) == expected
        assert ours.apply_chat_template(messages, return_dict=True) == {
            "input_ids": expected,
            "attention_mask": json.loads(
                json.dumps(theirs.apply_chat_template(messages)["attention_mask"])
            ),
        }
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
        text = theirs.apply_chat_template(messages, **options)
        assert ours.apply_chat_template(messages, **options) == text
    neutral: dict[str, Any] = {"padding": False, "truncation": False, "return_tensors": None}
    assert ours.apply_chat_template(one, **neutral) == ours.apply_chat_template(one)


@pytest.fixture
def tokenizers(files: Path, tmp_path: Path) -> tuple[Tokenizer, Any]:
    """Ours and transformers' of files that put special tokens around a text."""
    transformers = pytest.importorskip("transformers")
    source = json.loads((files / "tokenizer.json").read_text())
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>"))
    source["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, sequence, end],
        "pair": [begin, sequence, end, sequence],
        "special_tokens": {
            token: {"id": token, "ids": [token_id], "tokens": [token]}
            for token, token_id in (("<s>", 0), ("</s>", tiny_text_model.END))
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "padding_side": "left",
        "model_max_length": 11,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    return Tokenizer.from_directory(tmp_path), theirs


LAYOUTS: list[dict[str, Any]] = [
    {"padding": True},
    {"padding": "longest", "padding_side": "right"},
    {"padding": "max_length", "max_length": 9},
    {"padding": "max_length", "truncation": True},
    {"padding": True, "pad_to_multiple_of": 8},
    {"truncation": True, "max_length": 4},
    {"truncation": "longest_first", "max_length": 2},
    {"truncation": True},
    {"max_length": 4},
    {"max_length": 4, "truncation": False},
    {"padding": True, "max_length": 4},
    {"add_special_tokens": False, "truncation": True, "max_length": 3, "padding": True},
    {"padding": "do_not_pad", "truncation": "do_not_truncate"},
    {"return_attention_mask": False},
]


@pytest.mark.parametrize("text", ["hi", "a longer text, cut", ["hi", "there you are, at last"]])
@pytest.mark.parametrize("options", LAYOUTS, ids=repr)
def test_rows_are_cut_and_padded_as_in_transformers(
    tokenizers: tuple[Tokenizer, Any], text: Any, options: dict[str, Any]
) -> None:
    ours, theirs = tokenizers
    found, expected = ours(text, **options), theirs(text, **options)
    assert found.input_ids == found["input_ids"] == expected["input_ids"]
    assert ("attention_mask" in found) == ("attention_mask" in expected)
    assert found.get("attention_mask") == expected.get("attention_mask")
    if isinstance(text, str):
        assert ours.encode(text, **options) == theirs.encode(text, **options)


def test_rows_are_padded_later_as_in_transformers(tokenizers: tuple[Tokenizer, Any]) -> None:
    ours, theirs = tokenizers
    for options in ({}, {"padding": "max_length", "max_length": 9}, {"return_tensors": "np"}):
        rows = {"input_ids": [[5, 6, 7], [5]]}
        found, expected = ours.pad(rows, **options), theirs.pad(rows, **options)
        for name in ("input_ids", "attention_mask"):
            assert np.array_equal(found[name], expected[name]), (options, name)


def test_tokens_are_cut_on_either_side(tokenizers: tuple[Tokenizer, Any]) -> None:
    ours, theirs = tokenizers
    ours.truncation_side = theirs.truncation_side = "left"
    options: dict[str, Any] = {"truncation": True, "max_length": 5}
    assert ours("abcdefgh", **options).input_ids == theirs("abcdefgh", **options)["input_ids"]


@pytest.mark.parametrize("kind", ["np", "pt"])
def test_tensors_are_those_of_transformers(tokenizers: tuple[Tokenizer, Any], kind: str) -> None:
    ours, theirs = tokenizers
    for text in ("hi", ["hi", "there"]):
        found = ours(text, padding=True, return_tensors=kind)
        expected = theirs(text, padding=True, return_tensors=kind)
        for name in ("input_ids", "attention_mask"):
            assert type(found[name]) is type(expected[name])
            assert found[name].dtype == expected[name].dtype
            assert found[name].tolist() == expected[name].tolist()
    ids = ours.encode("hi", return_tensors=kind)
    assert ids.shape == (1, 4)
    assert ours.batch_decode(ids, skip_special_tokens=True) == ["hi"]
    assert ours.decode(ids[0][1]) == ours.decode(int(ids[0][1])) == "h"
    if kind == "pt":
        assert ours("hi", return_tensors="pt").to("cpu").input_ids.device.type == "cpu"
    with pytest.raises(ValueError, match="padding=True"):
        ours(["hi", "there"], return_tensors=kind)


@pytest.mark.parametrize("many", [False, True])
def test_conversations_are_cut_and_padded_as_in_transformers(
    tokenizers: tuple[Tokenizer, Any], many: bool
) -> None:
    ours, theirs = tokenizers
    ours.chat_template = theirs.chat_template = tiny_text_model.CHAT_TEMPLATE
    one: list[Any] = [{"role": "user", "content": "hi"}]
    messages: Any = [one, [*one, *one]] if many else one
    known = {"padding", "truncation", "max_length"}
    layouts = [options for options in LAYOUTS if set(options) <= known]
    assert len(layouts) >= 9
    for options in (*layouts, {"padding": True, "return_tensors": "np"}):
        given: dict[str, Any] = {"add_generation_prompt": True, "return_dict": True, **options}
        found = ours.apply_chat_template(messages, **given)
        expected = theirs.apply_chat_template(messages, **given)
        for name in ("input_ids", "attention_mask"):
            assert json.dumps(found[name], default=lambda array: array.tolist()) == json.dumps(
                expected[name], default=lambda array: array.tolist()
            )
    inner: dict[str, Any] = {"truncation": True, "max_length": 3}
    assert ours.apply_chat_template(one, tokenizer_kwargs=inner) == ours.apply_chat_template(
        one, **inner
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_offsets_mapping": True}, "return_offsets_mapping.*AutoTokenizer"),
        ({"is_split_into_words": True}, "is_split_into_words.*AutoTokenizer"),
        ({"padding": "shortest"}, 'padding must be True, "longest"'),
        ({"truncation": "only_second", "max_length": 1}, "truncation must be"),
        ({"padding_side": "top"}, 'padding_side must be "left" or "right"'),
        ({"return_tensors": "tf"}, 'return_tensors must be "pt" or "np"'),
        ({"padding": True}, r"tokenizer\.pad_token = tokenizer\.eos_token"),
    ],
)
def test_what_a_tokenizer_cannot_do_is_refused(
    ours: Tokenizer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ours("hi", **options)
    with pytest.raises(ValueError, match="return_assistant_tokens_mask"):
        ours.apply_chat_template([], return_assistant_tokens_mask=True)
    with pytest.raises(ValueError, match="clean_up_tokenization_spaces"):
        ours.decode([5], clean_up_tokenization_spaces=True)


def test_a_template_that_is_set_is_the_one_that_is_used(files: Path) -> None:
    ours = Tokenizer.from_directory(files)
    messages = [{"role": "user", "content": "hi"}]
    for template in ("{{ messages[0].content }}!", {"default": "{{ messages[0].content }}!"}):
        ours.chat_template = template
        assert ours.chat_template == ours.get_chat_template() == "{{ messages[0].content }}!"
        assert ours.render_chat(messages) == "hi!"
    ours.chat_template = {"default": "plain", "tool_use": "tools"}
    assert (ours.get_chat_template(), ours.get_chat_template(tools=[{}])) == ("plain", "tools")
    ours.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        ours.render_chat(messages)


def test_what_scripts_do_with_a_tokenizer(files: Path, theirs: Any) -> None:
    ours = Tokenizer.from_directory(files)
    assert ours.tokenize("a b") == theirs.tokenize("a b")
    assert ours(["hi", "there"]) == {
        name: theirs(["hi", "there"])[name] for name in ("input_ids", "attention_mask")
    }
    assert ours.encode_plus("hi") == ours("hi")
    assert set(ours.all_special_tokens) == {"<s>", "<pad>", "</s>"}
    assert (ours.pad_token, ours.pad_token_id, ours.bos_token) == (None, None, None)
    ours.pad_token = ours.eos_token
    assert (ours.pad_token, ours.pad_token_id) == ("</s>", ours.eos_token_id)
    ours.pad_token_id = 0
    assert (ours.pad_token, ours.pad_token_id) == ("<s>", 0)
    assert ours.model_max_length == theirs.model_max_length
    ours.pad_token_id = None
    assert ours.pad_token is None
    with pytest.raises(AttributeError, match="input_ids, attention_mask, no offsets"):
        ours("hi").offsets  # noqa: B018
