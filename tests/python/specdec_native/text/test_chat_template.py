"""Chat templates: what they render, must show and refuse, and which of several is used."""

from pathlib import Path
from typing import Any

import pytest

from specdec_native.text.chat_template import check_all_shown, render
from specdec_native.text.tokenizer import Tokenizer
from tiny_tokenizers import byte_level, save

TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("no such role: " + message.role) }}
    {%- endif %}
    {{- "<" + message.role + ">" + message.content + eos_token }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}
"""
HELLO = [{"role": "user", "content": "<hello> & 'ü'"}]
VARIABLES = {"eos_token": "</s>"}


def test_a_conversation_is_rendered() -> None:
    assert render(TEMPLATE, HELLO, variables=VARIABLES) == "<user><hello> & 'ü'</s><assistant>"
    assert render(TEMPLATE, HELLO, add_generation_prompt=False, variables=VARIABLES) == (
        "<user><hello> & 'ü'</s>"
    )


def test_tools_are_written_as_plain_json() -> None:
    text = render(TEMPLATE, HELLO, tools=[{"name": "<ü>"}], variables=VARIABLES)
    assert '[{"name": "<ü>"}]' in text


def test_the_final_message_can_be_continued() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I think "}]
    options: dict[str, Any] = {"add_generation_prompt": False, "variables": VARIABLES}
    text = render(TEMPLATE, messages, continue_final_message=True, **options)
    assert text.endswith("<assistant>I think ")
    with pytest.raises(ValueError, match="exclude each other"):
        render(TEMPLATE, messages, continue_final_message=True, variables=VARIABLES)


def test_text_parts_are_joined() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]
    assert "<user>a\nb</s>" in render(TEMPLATE, messages, variables=VARIABLES)


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (TEMPLATE, [], "empty"),
        (TEMPLATE, [{"content": "x"}], "role"),
        (TEMPLATE, ["x"], r"messages\[0\]"),
        (TEMPLATE, [{"role": "user", "content": [{"type": "image"}]}], "text"),
        (TEMPLATE, [{"role": "user", "content": 3}], "content"),
        (TEMPLATE, [{"role": "robot", "content": "x"}], "no such role: robot"),
        ("{% if %}", HELLO, "not valid Jinja"),
        ("{{ messages.__class__.__mro__ }}", HELLO, "chat template"),
    ],
)
def test_what_cannot_be_rendered_is_refused(
    template: str, messages: list[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        render(template, messages, variables=VARIABLES)


CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"},
    {"role": "tool", "content": '{"a": "\u00e9"}'},
    {"role": "assistant", "content": "<think>so</think>\n\nyes"},
    {"role": "user", "content": ""},
]
ALL_SHOWN = (
    "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}",
    "{{ messages | tojson(ensure_ascii=true) }}",
    "{{ messages | map(attribute='content') | join | upper }}",
    # System text within the first question, thoughts cut off, calls in place of content.
    "{% set system = messages[0].content | trim %}{% for m in messages[1:] %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% else %}"
    "{{ m.content.split('</think>')[-1].lstrip() }}{{ system if loop.first }}{% endif %}"
    "{% endfor %}",
    "{% for m in messages %}{{ m.role }}{{ m.content[:4] }}{% endfor %}",
    "{% for m in messages %}{{ m.content | length }} {% endfor %}",
    "{% for m in messages %}{% if '17' in m.content %}{{ raise_exception('') }}{% endif %}"
    "{{ m.content }}{% endfor %}",
)


@pytest.mark.parametrize("template", ALL_SHOWN)
def test_messages_that_a_template_changes_are_shown(template: str) -> None:
    check_all_shown(template, CONVERSATION)


@pytest.mark.parametrize(
    ("template", "index"),
    [
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", 0),
        ("{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}", 3),
        ("{% for m in messages if not m.tool_calls %}{{ m.content }}{% endfor %}", 2),
        ("{{ messages[0].content }}{{ messages[-1].content }}", 1),
        ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", 5),
        ("{{ messages | length }}", 0),
        ("nothing, be brief", 0),
    ],
)
def test_a_message_that_a_template_leaves_out_is_named(template: str, index: int) -> None:
    render(template, CONVERSATION)
    with pytest.raises(ValueError, match=rf"^messages\[{index}\]: the chat template does not show"):
        check_all_shown(template, CONVERSATION)


def test_calls_of_others_than_the_assistant_are_passed_over() -> None:
    message = {"role": "user", "content": "hello", "tool_calls": [[1, 2], "a"]}
    check_all_shown("{% for m in messages %}{{ m.content }}{% endfor %}", [message])


def test_developers_are_the_system_where_a_template_knows_none() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render(TEMPLATE, messages, variables=VARIABLES) == "<system>x</s><assistant>"
    assert render("{{ messages[0].role }}{# or developer #}", messages) == "developer"
    assert messages[0]["role"] == "developer"


def test_template_files_take_precedence_over_the_config(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, chat_template="from config", eos_token="</s>")
    assert Tokenizer.from_directory(tmp_path).chat_template == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file {{ eos_token }}")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.apply_chat_template(HELLO, tokenize=False) == "from file </s>"
    given = Tokenizer.from_directory(tmp_path, chat_template="given {{ messages[0].content }}")
    both = given.apply_chat_template([HELLO, HELLO], tokenize=False)
    assert both == ["given <hello> & 'ü'"] * 2


def test_a_template_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "T"}]
    tokenizer = Tokenizer.from_directory(save(byte_level(), tmp_path, chat_template=templates))
    assert tokenizer.render_chat(HELLO) == "plain"
    assert tokenizer.render_chat(HELLO, tools=[{"name": "f"}]) == "T"


def test_of_several_templates_without_a_default_one_is_chosen_by_its_name(tmp_path: Path) -> None:
    templates = [{"name": "rag", "template": "R{{ 1 }}"}, {"name": "chat", "template": "C{{ 2 }}"}]
    save(byte_level(), tmp_path, chat_template=templates)
    tokenizer = Tokenizer.from_directory(tmp_path)
    with pytest.raises(ValueError, match=r'several chat templates, chat, rag,.*template="chat"'):
        tokenizer.render_chat(HELLO)
    assert tokenizer.render_chat(HELLO, chat_template="rag") == "R1"
    assert Tokenizer.from_directory(tmp_path, chat_template="rag").render_chat(HELLO) == "R1"
    with pytest.raises(ValueError, match="'ragg' is neither Jinja source nor one of.*: chat, rag"):
        tokenizer.render_chat(HELLO, chat_template="ragg")
    with pytest.raises(ValueError, match="neither a file nor Jinja source nor one.*: chat, rag"):
        Tokenizer.from_directory(tmp_path, chat_template="ragg")


def test_the_only_template_needs_no_name(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, chat_template=[{"name": "rag", "template": "R"}])
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.render_chat(HELLO) == tokenizer.chat_template == "R"


def test_without_a_template_the_error_says_what_to_do(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(byte_level(), tmp_path))
    with pytest.raises(ValueError, match="no chat template; pass chat_template"):
        tokenizer.apply_chat_template(HELLO)
