"""How models mark what they think before they answer."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class ReasoningStart(enum.Enum):
    """Where an answer begins, by what its prompt ends with."""

    OPTIONAL = "optional"  # the model may think first, or not
    BEGUN = "begun"  # the prompt has begun the reasoning
    OVER = "over"  # the prompt has ended it: this answer has none


@dataclasses.dataclass(frozen=True)
class ReasoningFormat:
    """The texts around a model's reasoning.

    Attributes:
        names: what --reasoning-parser calls it; the first is this format's own name.
        begin: any of these texts begins it, as the first text of an answer.
        end: any of them ends it; the first is written where a budget is spent.
        template_marks: texts of a chat template that show the format; empty where none does.
        is_certain: whether models think although neither the prompt nor the answer begins it.
        can_be_cut: whether `end` may follow after any token.
        gap: what models write between the reasoning and the answer.
    """

    names: tuple[str, ...]
    begin: tuple[str, ...]
    end: tuple[str, ...]
    template_marks: tuple[str, ...] = ()
    is_certain: bool = False
    can_be_cut: bool = True
    gap: str = "\n\n"

    @property
    def tags(self) -> frozenset[str]:
        """Marks that may be special tokens, which texts leave out."""
        return frozenset((*self.begin, *self.end))

    def start_after(self, prompt: str, *, is_continued: bool = False) -> ReasoningStart:
        """The start of an answer to this prompt.

        Marks count where the prompt ends with one, since users write about marks as well. With
        `is_continued`, the prompt ends with a part of the answer: the last mark counts.
        """
        text = prompt.rstrip()
        if is_continued:
            begun = max((text.rfind(mark) for mark in self.begin), default=-1)
            ended = max(text.rfind(mark) for mark in self.end)
            if begun > ended:
                return ReasoningStart.BEGUN
            return ReasoningStart.OVER
        if text.endswith(tuple(mark.rstrip() for mark in self.end)):
            return ReasoningStart.OVER
        if self.is_certain or text.endswith(tuple(mark.rstrip() for mark in self.begin)):
            return ReasoningStart.BEGUN
        return ReasoningStart.OPTIONAL


THINK = ReasoningFormat(
    names=(
        *("think", "qwen3", "deepseek_v3", "glm45", "glm47", "granite_thinking_parser", "holo2"),
        *("mimo", "nemotron_v3", "olmo3", "step3p5"),
    ),
    begin=("<think>",),
    end=("</think>",),
    template_marks=("</think>", "<think>"),
)
# Harmony's reasoning is a message on a channel, and the answer is one on another.
HARMONY = ReasoningFormat(
    names=("openai_gptoss",),
    begin=(),
    end=(
        "<|channel|>final<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>final json<|message|>",
    ),
    template_marks=("<|channel|>analysis",),
    is_certain=True,
    can_be_cut=False,
    gap="",
)
# In the order in which templates are searched: a template may hold marks of several.
REASONING_FORMATS = (
    HARMONY,
    ReasoningFormat(
        names=("gemma4",),
        begin=("<|channel>", "<|channel>thought\n"),
        end=("<channel|>",),
        template_marks=("<|channel>thought",),
    ),
    ReasoningFormat(
        names=("mistral",),
        begin=("[THINK]",),
        end=("[/THINK]",),
        template_marks=("[/THINK]", "[THINK]"),
    ),
    ReasoningFormat(
        names=("seed_oss",),
        begin=("<seed:think>",),
        end=("</seed:think>",),
        template_marks=("<seed:think>",),
    ),
    ReasoningFormat(
        names=("granite",),
        begin=("Here is my thought process:", "Here's my thought process:"),
        end=("Here is my response:", "Here's my response:"),
        template_marks=("Here is my thought process:", "Here's my thought process:"),
    ),
    THINK,
    # Models whose templates began no reasoning, though the models always think.
    dataclasses.replace(
        THINK,
        names=("deepseek_r1", "minimax_m2", "step3"),
        template_marks=(),
        is_certain=True,
    ),
)
REASONING_NAMES: Mapping[str, ReasoningFormat] = {
    name: form for form in REASONING_FORMATS for name in form.names
}


def reasoning_format_of(chat_template: str | None) -> ReasoningFormat | None:
    """The format that a chat template's own text shows; None for none."""
    for form in REASONING_FORMATS:
        if any(mark in (chat_template or "") for mark in form.template_marks):
            return form
    return None
