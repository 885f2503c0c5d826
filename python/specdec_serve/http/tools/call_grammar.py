"""Grammars of answers with calls that the model chooses to make, in its own syntax."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specdec_native.requests.grammar_compiler import json_schema_with_options
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.tools.call_formats import TAG, CallFormat
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.named_reader import NamedCalls
from specdec_serve.http.tools.object_reader import ObjectCalls
from specdec_serve.http.tools.schemas import call_schemas, list_of, object_of

TokenId = Callable[[str], int | None]  # the token of a text that is a token by itself

# With more white space, some models never end. A schema's own options come last.
_OPTIONS = {"x-guidance": {"whitespace_pattern": " ?"}}
_RULES = """\
TEXT: /(.|\\n)*/
SPACE: /[ \\n]{0,2}/
"""


def describes_calls(form: CallFormat) -> bool:
    """Whether calls of this format have a grammar: their arguments are JSON, behind a mark."""
    calls = form.calls
    is_known = isinstance(calls, ObjectCalls) or (isinstance(calls, NamedCalls) and not calls.end)
    return is_known and bool(form.frame.marks)


def calls_or_answer(
    form: CallFormat,
    functions: Sequence[Function],
    answer: StructuredOutputsParams,
    token_id: TokenId,
    *,
    is_parallel: bool,
) -> StructuredOutputsParams:
    """The answer is what `answer`, of a JSON kind, describes, or calls alone."""
    schema = json.dumps(json_schema_with_options(answer))
    calls = "section+" if is_parallel else "section"
    return _made([f"start: answer | {calls}", f"answer: %json {schema}"], form, functions, token_id)


def calls_in_text(
    form: CallFormat, functions: Sequence[Function], token_id: TokenId
) -> StructuredOutputsParams:
    """The answer is any text, and calls in it obey the schemas of strict functions."""
    begin = _mark(form.frame.marks[0][0], token_id)
    if begin.startswith('"'):
        pattern = re.escape(form.frame.marks[0][0]).replace("/", r"\/")
        lines = ["start: (text_begin rest)* TEXT", rf"text_begin[lazy]: /(.|\n)*{pattern}/"]
    else:
        lines = [f"start: (TEXT {begin} rest)* TEXT"]
    return _made(lines, form, functions, token_id)


def _made(
    lines: list[str], form: CallFormat, functions: Sequence[Function], token_id: TokenId
) -> StructuredOutputsParams:
    begin, end = (_mark(mark, token_id) for mark in form.frame.marks[0])
    lines.append(f"section: {begin} rest")
    lines.append(f"rest: SPACE calls SPACE {end} SPACE" if end else "rest: SPACE calls SPACE")
    lines += _rules_of_calls(form, functions, token_id)
    return StructuredOutputsParams(grammar="\n".join(lines) + "\n" + _RULES)


def _rules_of_calls(
    form: CallFormat, functions: Sequence[Function], token_id: TokenId
) -> Iterable[str]:
    """The rule `calls`, and those that it needs."""
    if isinstance(form.calls, NamedCalls):
        name_ends = [mark for mark in form.calls.header_ends if TAG.fullmatch(mark)]
        name_end = next((mark for mark in name_ends if token_id(mark) is not None), "")
        for i, function in enumerate(functions):
            header = f"{json.dumps(function.name)} {_mark(name_end, token_id)}"
            yield f"call_{i}: {header} %json {json.dumps(_strict(function) | _OPTIONS)}"
        yield f"calls: {' | '.join(f'call_{i}' for i in range(len(functions)))}"
        return
    calls, definitions = call_schemas(functions, "arguments", _strict)
    one = list_of(calls, definitions) if form.frame.lists == "always" else {"anyOf": calls}
    yield f"calls: %json {json.dumps(one | definitions | _OPTIONS)}"


def _strict(function: Function) -> dict[str, Any]:
    """The schema of the arguments; any object where the function is not strict."""
    return object_of(function.parameters) if function.is_strict else {"type": "object"}


def _mark(mark: str, token_id: TokenId) -> str:
    """A mark as a part of a rule: its tokens by their ids, other text as it is."""
    parts = []
    position = 0
    for tag in TAG.finditer(mark):
        parts.append(mark[position : tag.start()])
        token = token_id(tag[0])
        parts.append(tag[0] if token is None else f"<[{token}]>")
        position = tag.end()
    parts.append(mark[position:])
    return " ".join(
        part if part.startswith("<[") else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )
