"""Grammars of answers with calls, in the model's own syntax."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from specdec_native.requests.grammar_compiler import json_schema_with_options
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.tools.call_formats import TAG, CallFormat
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.gemma_reader import GemmaCalls
from specdec_serve.http.tools.lark import Lark, TokenId, one_of, quoted, re_of
from specdec_serve.http.tools.literal_grammar import GemmaGrammar, PythonGrammar
from specdec_serve.http.tools.named_reader import NamedCalls
from specdec_serve.http.tools.object_reader import ObjectCalls
from specdec_serve.http.tools.python_reader import PythonCalls
from specdec_serve.http.tools.schema_parts import CannotHoldError, json_arguments
from specdec_serve.http.tools.schemas import object_of
from specdec_serve.http.tools.xml_grammar import XmlGrammar
from specdec_serve.http.tools.xml_reader import XmlCalls

# Names that each syntax can hold.
_NAMES: Sequence[tuple[type, str]] = (
    (PythonCalls, r"[A-Za-z_][\w.\-]*"),
    (XmlCalls, r"[\w.\-:/]+"),
    (GemmaCalls, r"[\w.\-/]+"),
    (NamedCalls, r"[\w.\-/]+"),
    (ObjectCalls, r"(?s:.+)"),
)
# What text that is no call hardly begins an object with.
_OBJECT_BEGIN = r'\{\s*("(name|arguments|parameters)"|"type"\s*:\s*"function")'


@dataclasses.dataclass(frozen=True)
class _Call:
    """The rule of a call of one function: a regular expression of its beginning, then the rest.

    Attributes:
        begin: as much as tells the call from other text, where a call may stand without a mark
            before it; "" in a syntax in which none may.
    """

    begin: str
    rest: str


class CallGrammar:
    """Grammars of the calls of one request, in one format.

    Raises CannotHoldError for a function whose name or schema the syntax cannot hold.
    """

    def __init__(
        self,
        form: CallFormat,
        functions: Sequence[Function],
        token_id: TokenId,
        *,
        is_parallel: bool = True,
        is_forced: bool = False,
    ) -> None:
        """`is_forced`: all calls are held to the schemas, not only those of strict functions."""
        self._form = form
        self._frame = form.frame
        self._is_parallel = is_parallel
        self._lark = Lark(token_id)
        self._space = self._lark.optional_space()
        self._marks = self._marks_to_write()
        self._syntax = form.calls
        self._is_list = form.frame.lists == "always" or form.writes_lists
        if isinstance(self._syntax, NamedCalls) and self._name_end(self._syntax) is None:
            self._syntax = ObjectCalls()  # models of the time before that mark
            self._is_list = True
        by_name = {function.name: function for function in functions}
        self._calls = [self._call(f, is_forced or f.is_strict) for f in by_name.values()]

    # -- answers

    def calls_alone(self) -> StructuredOutputsParams:
        """The answer is calls."""
        return self._lark.params(self._bare() if self._form.is_bare else self._sections())

    def calls_or_answer(self, answer: StructuredOutputsParams) -> StructuredOutputsParams:
        """The answer is what `answer`, of a JSON kind, describes, or calls alone, behind marks."""
        schema = json.dumps(json_schema_with_options(answer))
        return self._lark.params(one_of([f"%json {schema}", self._sections()]))

    def calls_in_text(self) -> StructuredOutputsParams:
        """The answer is text with calls in it."""
        lark, form = self._lark, self._form
        text = lark.without(self._begins(), self._first_begins())
        begun = [f"{lark.ended(text, self._marks[0])} {self._rest()}"]
        if form.is_bare and not self._frame.bare_at_start:
            begun += [
                f"{lark.terminal(f'{text} {lark.pattern(call.begin)}')} {call.rest}"
                for call in self._calls
            ]
        start = f"{one_of(begun)}* {text}"
        if form.is_bare and self._frame.bare_at_start:
            start = f"({self._bare()})? {start}"
        return lark.params(start)

    # -- calls, and what stands around them

    def _sections(self) -> str:
        """All calls of an answer that is nothing else, behind marks."""
        section = self._lark.rule(f"{self._lark.text(self._marks[0])} {self._rest()}")
        if self._is_list:
            return section
        return self._several(section, self._space)

    def _rest(self) -> str:
        """What follows the mark before calls."""
        call = self._lark.rule(one_of(self._written(call) for call in self._calls))
        calls = call
        if self._is_list:
            calls = f'"[" {self._space} {self._several(call, self._comma())} {self._space} "]"'
        elif self._frame.repeats:
            calls = self._several(call, self._space)
        end = self._lark.text(self._marks[1])
        after = f"{self._space} {end}" if end else ""
        return self._lark.rule(f"{self._space} {calls} {after}")

    def _bare(self) -> str:
        """Calls without marks, from the first character on."""
        call = self._lark.rule(one_of(self._written(call) for call in self._calls))
        if not self._is_list:
            return self._several(call, self._lark.pattern("; ?"))
        begins = [self._lark.pattern(rf"\[ ?{each.begin}") for each in self._calls]
        begun = one_of(f"{b} {each.rest}" for b, each in zip(begins, self._calls, strict=True))
        more = f"({self._comma()} {call})*" if self._is_parallel else ""
        return self._lark.rule(f'{begun} {more} {self._space} "]"')

    def _several(self, call: str, separator: str) -> str:
        return f"{call} ({separator} {call})*" if self._is_parallel else call

    def _comma(self) -> str:
        return self._lark.pattern(r",[ \n]{0,3}")

    def _written(self, call: _Call) -> str:
        return f"{self._lark.pattern(call.begin)} {call.rest}" if call.begin else call.rest

    def _marks_to_write(self) -> tuple[str, str]:
        """The first marks that are tokens, or else the first."""
        marks = self._frame.marks
        return next((mark for mark in marks if self._lark.has_tokens(mark[0])), marks[0])

    # -- where the reader takes text for a call

    def _begins(self) -> list[str]:
        """What no text may hold."""
        found = []
        for mark, _ in self._frame.marks:
            is_tag = TAG.sub("", mark) == ""
            found.append(re_of(mark) + ("" if is_tag else r"\s*[\[{]"))
        if self._frame.bare and not self._frame.bare_at_start:
            is_object = self._frame.bare == "{"
            found.append(_OBJECT_BEGIN if is_object else re_of(self._frame.bare))
        return found

    def _first_begins(self) -> list[str]:
        """What no text may begin with."""
        if not self._frame.bare_at_start:
            return []
        begin = r"[\w.\-]+\s*\(" if isinstance(self._syntax, PythonCalls) else r"\{"
        return [rf"\s*{re_of(self._frame.bare)}\s*{begin}"]

    # -- one call

    def _call(self, function: Function, is_held: bool) -> _Call:
        syntax = self._syntax
        pattern = next(names for kind, names in _NAMES if isinstance(syntax, kind))
        if re.fullmatch(pattern, function.name) is None or len(function.name) > 128:
            raise CannotHoldError(f"function {function.name[:80]!r}", "calls cannot hold its name")
        try:
            match syntax:
                case ObjectCalls():
                    return self._object_call(syntax, function, is_held)
                case PythonCalls():
                    return self._python_call(function, is_held)
                case NamedCalls():
                    return _Call("", self._named_call(syntax, function, is_held))
                case XmlCalls():
                    return _Call("", self._xml_call(syntax, function, is_held))
                case GemmaCalls():
                    return _Call("", self._gemma_call(syntax, function, is_held))
        except CannotHoldError as error:
            raise CannotHoldError(f"function {function.name[:80]!r}", str(error)) from error
        raise AssertionError(syntax)

    def _object_call(self, syntax: ObjectCalls, function: Function, is_held: bool) -> _Call:
        name = re_of(json.dumps(function.name))
        begin = rf'\{{ ?"name": ?{name}, ?"{syntax.key}": ?'
        end = self._lark.pattern(r" ?\}")
        return _Call(begin, f"{json_arguments(function, is_held=is_held)} {end}")

    def _name_end(self, syntax: NamedCalls) -> str | None:
        """The mark behind the name; None where the tokenizer lacks the token that it is."""
        (mark, *others) = syntax.header_ends
        is_there = not others or self._lark.has_tokens(mark)
        return mark if is_there else None

    def _named_call(self, syntax: NamedCalls, function: Function, is_held: bool) -> str:
        lark = self._lark
        parts = [
            lark.text(syntax.begin + syntax.before_name + function.name),
            lark.pattern(syntax.after_name) if syntax.after_name else "",
            lark.text(self._name_end(syntax) or ""),
            *(self._space, json_arguments(function, is_held=is_held)),
            f"{self._space} {lark.text(syntax.end)}" if syntax.end else "",
        ]
        return " ".join(filter(None, parts))

    def _xml_call(self, syntax: XmlCalls, function: Function, is_held: bool) -> str:
        lark = self._lark
        grammar = XmlGrammar(lark, syntax, function)
        parameters = grammar.parameters() if is_held else grammar.any_parameters()
        name = lark.text(syntax.begin + function.name + syntax.name_end)
        return f"{name} {self._space} {parameters} {lark.text(syntax.end)}"

    def _python_call(self, function: Function, is_held: bool) -> _Call:
        grammar = PythonGrammar(self._lark, object_of(function.parameters))
        arguments = grammar.arguments() if is_held else grammar.any_arguments()
        return _Call(rf"{re_of(function.name)}\(", f'{arguments} ")"')

    def _gemma_call(self, syntax: GemmaCalls, function: Function, is_held: bool) -> str:
        grammar = GemmaGrammar(self._lark, object_of(function.parameters), syntax.quote)
        arguments = grammar.arguments() if is_held else grammar.any_arguments()
        return f'{quoted(f"call:{function.name}{{")} {arguments} "}}"'
