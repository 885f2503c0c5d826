"""Tiny models that think: byte-level tokenizers with the marks of a family, and chat templates."""

import json
from pathlib import Path

import tokenizers

from specdec_native.text.reasoning import REASONING_NAMES, ReasoningFormat
from tiny_text_model import CHARS, FIRST_CHAR, PIECES, add_byte_text

# The marks that are tokens by themselves, and whether they are special. Other marks are spelled.
MARKS: dict[str, tuple[tuple[str, ...], bool]] = {
    "qwen3": (("<think>", "</think>"), False),
    "olmo3": ((), False),
    "mistral": (("[THINK]", "[/THINK]"), True),
    "granite": ((), False),
    "gemma4": (("<|channel>", "<channel|>"), True),
    "openai_gptoss": (
        (
            *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
            *("<|return|>", "final"),
        ),
        True,
    ),
}
TEMPLATE = (
    "{%% for m in messages %%}{{ m.role }}:{{ m.content }};{%% endfor %%}"
    "{%% if add_generation_prompt %%}%(turn)s"
    "{%% if enable_thinking is defined and not enable_thinking %%}%(begin)s\n\n%(end)s\n\n"
    "{%% elif is_begun is defined %%}%(begin)s\n{%% endif %%}{%% endif %%}"
)
FIRST_MARK = FIRST_CHAR + len(CHARS) + 1 + len(PIECES)


def format_of(family: str) -> ReasoningFormat:
    return REASONING_NAMES[family]


def mark_ids(family: str) -> dict[str, int]:
    return {mark: FIRST_MARK + i for i, mark in enumerate(MARKS[family][0])}


def add_thinking_text(checkpoint: Path, target: Path, family: str) -> Path:
    """Copies a checkpoint to `target` and gives it a tokenizer and a template of the family."""
    add_byte_text(checkpoint, target)
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
    marks, are_special = MARKS[family]
    (tokenizer.add_special_tokens if are_special else tokenizer.add_tokens)([*marks])
    assert [*mark_ids(family).values()] == [tokenizer.token_to_id(mark) for mark in marks]
    tokenizer.save(str(target / "tokenizer.json"))
    form = format_of(family)
    begin = form.begin[-1] if form.begin else "<|channel|>analysis<|message|>"
    turn = "<|start|>assistant" if family == "openai_gptoss" else "assistant:"
    template = TEMPLATE % {"turn": turn, "begin": begin, "end": form.end[0]}
    config = {"eos_token": "</s>", "chat_template": template}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target
