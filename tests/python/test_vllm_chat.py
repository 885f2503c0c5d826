"""Conversations and tokenizers as vLLM's scripts have them, beside transformers'."""

import copy
import json
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    "option",
    [
        {"return_tensors": "pt"},
        {"padding": True},
        {"truncation": True, "max_length": 3},
        {"max_length": 3},
        {"return_assistant_tokens_mask": True},
        {"tokenizer_kwargs": {"padding": True}},
    ],
)
def test_tokenizer_options_that_are_not_here_are_refused(
    ours: Tokenizer, option: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))}.*AutoTokenizer"):
        ours.apply_chat_template([{"role": "user", "content": "hi"}], **option)
    with pytest.raises(ValueError, match=f"{next(iter(option))}.*AutoTokenizer"):
        ours("hi", **option)


def test_what_scripts_do_with_a_tokenizer(ours: Tokenizer, theirs: Any) -> None:
    assert ours.tokenize("a b") == theirs.tokenize("a b")
    assert ours(["hi", "there"]) == {
        name: theirs(["hi", "there"])[name] for name in ("input_ids", "attention_mask")
    }
    assert ours.pad_token is None
    ours.pad_token = ours.eos_token
    assert (ours.pad_token, ours.pad_token_id) == ("</s>", ours.eos_token_id)
