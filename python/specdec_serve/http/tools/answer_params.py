"""What the format of a model's answers means for a request's sampling parameters."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging

from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.served_engine import ServedEngine
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.call_formats import CallFormat
from specdec_serve.http.tools.call_grammar import calls_in_text, calls_or_answer, describes_calls
from specdec_serve.http.tools.parsers import AnswerFormat
from specdec_serve.http.tools.request import ToolUse, reads_calls

_JSON = ("json", "json_object")
_FORMATS = {"text": "text.format", "output_config": "output_config.format"}  # fields in fields

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
    grammar: Grammar | None,
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
    if form.is_harmony and grammar is not None and grammar.field == "tools":
        raise bad_request(
            "tool_choice: this model calls in messages of their own, which cannot be forced: set "
            f'{words.field} to "auto"',
            "tool_choice",
        )
    if _is_json_beside_calls(tools, grammar) and not (form.calls and describes_calls(form.calls)):
        assert grammar is not None
        name = _FORMATS.get(grammar.field, grammar.field)
        raise bad_request(
            f"{name} allows JSON alone, and this model's syntax of calls has no grammar beside it, "
            f'so with {words.field} "auto" the model could never call one of the tools: set '
            f'{words.field} to "none" for the JSON, to {words.required} for a call, or leave '
            f"{name} out",
            grammar.field,
        )


def adapt_params(
    params: SamplingParams,
    form: AnswerFormat,
    tools: ToolUse | None,
    grammar: Grammar | None,
    engine: ServedEngine,
) -> None:
    """Sets what the server has to see of the answer, and the grammar of calls beside text or JSON.

    `grammar` is the request's. Raises ApiError for functions that contradict each other.
    """
    params.shown_special_tokens = form.tags(reads_calls=reads_calls(tools))
    params.reasoning = form.reasoning
    if tools is None or not reads_calls(tools) or form.calls is None:
        return
    token_id = engine.tokenizer.convert_tokens_to_ids
    if grammar is not None and _is_json_beside_calls(tools, grammar):
        params.structured_outputs = calls_or_answer(
            form.calls, tools.functions, grammar.params, token_id, is_parallel=tools.parallel
        )
    elif grammar is None and _are_held_to_schemas(form.calls, tools):
        params.structured_outputs = calls_in_text(form.calls, tools.functions, token_id)


def _is_json_beside_calls(tools: ToolUse | None, grammar: Grammar | None) -> bool:
    return (
        reads_calls(tools)
        and grammar is not None
        and grammar.field != "structured_outputs"
        and grammar.params.kind in _JSON
    )


def _are_held_to_schemas(calls: CallFormat, tools: ToolUse) -> bool:
    is_asked = any(function.is_strict for function in tools.functions)
    return is_asked and describes_calls(calls) and _has_llguidance()


@functools.cache
def _has_llguidance() -> bool:
    if importlib.util.find_spec("llguidance") is not None:
        return True
    _logger.warning(
        'calls of functions with "strict": true are not held to their schemas: that needs '
        "llguidance (pip install 'specdec-native[structured]')"
    )
    return False
