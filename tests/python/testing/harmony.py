"""Harmony for tests: a chat template of gpt-oss's shape, and a tiny model that knows its marks."""

import json
from pathlib import Path

import tokenizers

from specdec_serve.http.tools.harmony import TAGS
from tiny_text_model import CHARS, FIRST_CHAR, add_text

CHAT_TEMPLATE = """\
{%- macro type_of(spec, is_nullable=false) -%}
    {%- if spec.type and spec.type is not string -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- elif spec.type == "array" -%}
        {{- (type_of(spec["items"]) if spec["items"] else "any") + "[]" -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name + ("" if name in (spec.required or []) else "?") + ": " + type_of(inner) }}
            {%- if inner.default is defined %}
                {{- ", // default: " + inner.default | tojson }}
            {%- endif %}
            {{- "" if loop.last else ",\\n" }}
        {%- endfor -%}
        {{- "\\n}" }}
    {%- elif spec.oneOf -%}
        {%- for inner in spec.oneOf -%}
            {{- type_of(inner) + ("" if loop.last else " | ") }}
        {%- endfor -%}
    {%- else -%}
        {{- "number" if spec.type == "integer" else spec.type or "any" -}}
    {%- endif -%}
    {%- if is_nullable or spec.nullable %}{{ " | null" }}{% endif -%}
{%- endmacro -%}
{%- macro namespace_of(name, tools) -%}
    {{- "## " + name + "\\n\\nnamespace " + name + " {\\n\\n" }}
    {%- for tool in tools -%}
        {%- set tool = tool.function -%}
        {%- if tool.description %}{{ "// " + tool.description + "\\n" }}{% endif -%}
        {{- "type " + tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties -%}
            {{- "_: " + type_of(tool.parameters) }}
        {%- endif -%}
        {{- ") => any;\\n\\n" }}
    {%- endfor -%}
    {{- "} // namespace " + name }}
{%- endmacro -%}
{%- macro system_message() -%}
    {%- set model_identity = model_identity if model_identity is defined else "You are a test." %}
    {%- set effort = reasoning_effort if reasoning_effort is defined else "medium" %}
    {{- model_identity + "\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
    {{- "Reasoning: " + effort + "\\n\\n" }}
    {%- if builtin_tools is defined %}
        {{- "Tools: " + builtin_tools | join(", ") + "\\n\\n" }}
    {%- endif %}
    {{- "# Valid channels: analysis, commentary, final." }}
    {%- if tools %}{{ "\\nCalls go to the commentary channel: 'functions'." }}{% endif -%}
{%- endmacro -%}

{{- "<|start|>system<|message|>" + system_message() + "<|end|>" }}
{%- set instructions, rest = "", messages %}
{%- if messages[0].role in ("developer", "system") %}
    {%- set instructions, rest = messages[0].content, messages[1:] %}
{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}{{ "# Instructions\\n\\n" + instructions }}{% endif %}
    {%- if tools %}{{ "\\n\\n# Tools\\n\\n" + namespace_of("functions", tools) }}{% endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in rest %}
    {%- if message.role == "assistant" %}
        {%- if "<|channel|>" in message.content %}
            {{- raise_exception("Give thoughts as thinking, not as marks in the content.") }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- set is_answered = namespace(yes=false) %}
            {%- for later in rest[loop.index:] %}
                {%- if later.role == "assistant" and not later.tool_calls %}
                    {%- set is_answered.yes = true %}
                {%- endif %}
            {%- endfor %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("Give content or thinking beside calls, not both.") }}
            {%- elif (message.content or message.thinking) and not is_answered.yes %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" }}
                {{- (message.content or message.thinking) + "<|end|>" }}
            {%- endif %}
            {%- set call = message.tool_calls[0].function %}
            {{- "<|start|>assistant to=functions." + call.name }}
            {{- "<|channel|>commentary json<|message|>" + call.arguments | tojson + "<|call|>" }}
            {%- set last_call.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" }}
                {{- message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_call.name = none %}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if last_call.name is none %}
            {{- raise_exception("There was no call before this tool's answer.") }}
        {%- endif %}
        {{- "<|start|>functions." + last_call.name + " to=assistant<|channel|>commentary" }}
        {{- "<|message|>" + message.content | tojson + "<|end|>" }}
    {%- elif message.role == "user" %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}
"""

MARKS = {tag: FIRST_CHAR + len(CHARS) + i for i, tag in enumerate((*TAGS, "\n"))}
"""The marks, and the line break that the template writes, with their ids."""


def add_harmony_text(checkpoint: Path, target: Path) -> Path:
    """Copies a checkpoint to `target` and gives it a tokenizer with marks, which are special."""
    add_text(checkpoint, target)
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
    tokenizer.add_special_tokens([*TAGS])
    tokenizer.add_tokens(["\n"])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"eos_token": "<|return|>", "chat_template": CHAT_TEMPLATE}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    ends = [MARKS["<|return|>"], MARKS["<|call|>"]]
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return target
