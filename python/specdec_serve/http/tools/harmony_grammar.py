"""Grammars of harmony's messages, in which calls are held to the functions' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from specdec_native.requests.grammar_compiler import json_schema_with_options
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START
from specdec_serve.http.tools.lark import ANY_TEXT, Lark, TokenId, one_of, quoted
from specdec_serve.http.tools.schema_parts import CannotHoldError, json_arguments

_NEXT = f"{END}{START}assistant"


class HarmonyGrammar:
    """Grammars of the messages of one answer, from behind the `<|start|>assistant` of the prompt.

    Messages on the channel "analysis" may come first. A call ends the answer. Raises
    CannotHoldError for a function whose name a header cannot hold.
    """

    def __init__(
        self, functions: Sequence[Function], token_id: TokenId, *, is_forced: bool = False
    ) -> None:
        """`is_forced`: all calls are held to the schemas, not only those of strict functions."""
        lark = self._lark = Lark(token_id)
        for mark in (START, CHANNEL, MESSAGE, CONSTRAIN, END):
            if not lark.has_tokens(mark):
                raise CannotHoldError("tokenizer", f"{mark} is not a token")
        self._text = lark.pattern(ANY_TEXT)
        self._thoughts = f"({self._message('analysis')} {lark.text(_NEXT)})*"
        kind = f"({lark.pattern(' ?')} {lark.text(f'{CONSTRAIN}json')} | {quoted(' json')})?"
        headers = []
        for function in functions:
            if re.fullmatch(r"[\w.\-]+", function.name) is None:
                name = f"function {function.name[:80]!r}"
                raise CannotHoldError(name, "calls cannot hold its name")
            to = f"to=functions.{function.name}"
            header = one_of(
                [
                    f"{lark.text(f'{CHANNEL}commentary {to}')} {kind}",
                    f"{quoted(f' {to}')} {lark.text(f'{CHANNEL}commentary')} {kind}",
                ]
            )
            arguments = json_arguments(function, is_held=is_forced or function.is_strict)
            headers.append(f"{header} {lark.text(MESSAGE)} {arguments}")
        self._call = lark.rule(one_of(headers))

    def calls_alone(self) -> StructuredOutputsParams:
        """The answer is thoughts, and a call."""
        return self._lark.params(f"{self._thoughts} {self._call}")

    def calls_or_answer(self, answer: StructuredOutputsParams) -> StructuredOutputsParams:
        """The answer is thoughts, and a call or what `answer`, of a JSON kind, describes."""
        lark = self._lark
        header = f'{lark.text(f"{CHANNEL}final")} (" " {lark.text(f"{CONSTRAIN}json")})?'
        schema = json.dumps(json_schema_with_options(answer))
        final = f"{header} {lark.text(MESSAGE)} %json {schema}"
        return lark.params(f"{self._thoughts} {one_of([final, self._call])}")

    def calls_in_text(self) -> StructuredOutputsParams:
        """The answer is messages of any text, the last of which may be a call.

        It may also be the rest of a message that the prompt has begun.
        """
        said = f"({self._message('commentary')} {self._lark.text(_NEXT)} {self._thoughts})*"
        last = one_of([self._message("final"), self._message("commentary"), self._call])
        return self._lark.params(one_of([self._text, f"{self._thoughts} {said} {last}"]))

    def _message(self, channel: str) -> str:
        return self._lark.rule(f"{self._lark.text(f'{CHANNEL}{channel}{MESSAGE}')} {self._text}")
