"""What the format of a model's answers means for a request's sampling parameters."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging

from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.served_engine import ServedEngine
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.parsers import AnswerFormat
from specdec_serve.http.tools.request import ToolUse, is_forced_in_syntax, reads_calls
from specdec_serve.http.tools.schema_parts import CannotHoldError

_JSON = ("json", "json_object")

_logger = logging.getLogger("specdec_native.server")


@dataclasses.dataclass(frozen=True)
class ChoiceWords:
    """What an API calls the ways to choose tools, for errors.

    Attributes:
        auto: the model may call, at the beginning of a sentence.
        field: where a request says it.
        required: the value for some call.
        one: what names the only tool to call.
    """

    auto: str
    field: str
    required: str
    one: str


OPENAI_WORDS = ChoiceWords('"auto" tool choice', "tool_choice", '"required"', "one function")
ANTHROPIC_WORDS = ChoiceWords(
    'tool_choice of the type "auto"', "tool_choice.type", '"any"', '"tool" with its name'
)


def check_served(
    form: AnswerFormat,
    tools: ToolUse | None,
    words: ChoiceWords = OPENAI_WORDS,
) -> None:
    """Raises ApiError for what cannot be had from a model whose answers have this format."""
    if reads_calls(tools) and not form.reads_calls:
        raise bad_request(
            f"{words.auto} requires --tool-call-parser to be set, because the chat template "
            "does not tell how this model writes calls: start the server with it, or set "
            f'{words.field} to {words.required}, to {words.one}, or to "none", which shows the '
            "tools to the model as text",
            "tool_choice",
        )


def adapt_params(
    params: SamplingParams,
    form: AnswerFormat,
    tools: ToolUse | None,
    grammar: Grammar | None,
    engine: ServedEngine,
) -> None:
    """Sets what the server has to see of the answer, and the grammar of calls.

    `grammar` is the request's. Raises ApiError for functions that the model's syntax of calls
    cannot be held to.
    """
    calls = _calls_grammar(form, tools, grammar, engine)
    if calls is not None:
        params.structured_outputs = calls
    is_read = reads_calls(tools) or is_forced_in_syntax(tools, params)
    params.shown_special_tokens = form.tags(reads_calls=is_read)
    # A grammar of harmony's messages has those with reasoning in it.
    params.reasoning = None if form.is_harmony and calls is not None else form.reasoning


def _calls_grammar(
    form: AnswerFormat, tools: ToolUse | None, grammar: Grammar | None, engine: ServedEngine
) -> StructuredOutputsParams | None:
    """The grammar of an answer with calls in the model's own syntax; None where none is needed."""
    if tools is None or tools.choice == "none" or not form.reads_calls:
        return None
    is_beside_json = (
        not tools.is_forced
        and grammar is not None
        and grammar.field != "structured_outputs"
        and grammar.params.kind in _JSON
    )
    is_strict = grammar is None and any(function.is_strict for function in tools.functions)
    if not (tools.is_forced or is_beside_json or (is_strict and _has_llguidance())):
        return None
    try:
        calls = form.grammar(tools, engine.tokenizer.convert_tokens_to_ids)
        if tools.is_forced:
            return calls.calls_alone()
        if is_beside_json and grammar is not None:
            return calls.calls_or_answer(grammar.params)
        return calls.calls_in_text()
    except CannotHoldError as error:
        if tools.is_forced and not form.is_harmony:
            return None  # the request's JSON list, which holds any schema
        raise bad_request(
            f"tools: {error}; calls of this model cannot be held to that: leave it out, or "
            'leave out "strict"',
            "tools",
        ) from error


@functools.cache
def _has_llguidance() -> bool:
    if importlib.util.find_spec("llguidance") is not None:
        return True
    _logger.warning(
        'calls of functions with "strict": true are not held to their schemas: that needs '
        "llguidance (pip install 'specdec-native[structured]')"
    )
    return False
