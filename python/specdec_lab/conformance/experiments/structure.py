"""Answers in JSON, and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from specdec_lab.conformance.experiments.base import Fields, Question, Subjects
from specdec_lab.conformance.replies import Completion, Reply, text_difference
from specdec_lab.conformance.rows import Row

_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer"},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "population", "is_capital"],
    "additionalProperties": False,
}
_TYPES = {"city": str, "population": int, "is_capital": bool}
_CITIES = ("Paris", "Osaka", "Quito", "Accra", "Oslo", "Lima", "Perth", "Bergen")
_TOOL = {
    "type": "function",
    "function": {
        "name": "store_city",
        "description": "Keeps a city.",
        "parameters": _SCHEMA,
        "strict": True,
    },
}
_NAMED = {"type": "function", "function": {"name": "store_city"}}
_JSON_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": _SCHEMA, "strict": True},
}
_MAX_TOKENS = 120
_KEY = re.compile(r'"([^"]*)"\s*:')


class Structured(Question):
    """A form that answers must have: whole, streamed and without drafts."""

    def __init__(
        self,
        subjects: Subjects,
        what: str,
        fields: dict[str, Any],
        form: Callable[[Completion], str | None],
    ) -> None:
        self._valid = Row("structure", f"{what}: valid")
        self._streamed = Row("structure", f"{what}: streamed as whole", is_promised=False)
        self._plain = Row("structure", f"{what}: with drafts as without", is_promised=False)
        super().__init__(subjects, (self._valid, self._streamed, self._plain))
        self._fields = fields
        self._form = form

    async def ask(self, number: int) -> None:
        """One city a round."""
        city = _CITIES[number % len(_CITIES)]
        question = f"Describe the city {city} in round {number + 1} as JSON."
        fields: Fields = {
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": _MAX_TOKENS,
            **self._fields,
        }
        whole = await self.server.ask("", **fields)
        self._valid.add(self._wrong_form(whole), fields)
        streamed = await self.server.ask("", stream=True, **fields)
        self._streamed.add(text_difference(whole.first, streamed.first), fields)
        if self.subjects.plain is None:
            self._plain.missing = "no URL without drafts"
            return
        plain = await self.subjects.plain.ask("", **fields)
        self._plain.add(text_difference(plain.first, whole.first), fields)

    def _wrong_form(self, reply: Reply) -> str | None:
        first = reply.first
        if first.finish_reason != "length":
            return self._form(first)
        # What the limit cut can be judged by its beginning.
        if "tools" in self._fields and first.text.strip():
            return f"no call; the text is {first.text[:60]!r}"
        texts = [first.text, *(arguments for _, arguments in first.calls)]
        return next(filter(None, map(_wrong_beginning, texts)), None)


def _wrong_beginning(text: str) -> str | None:
    """What keeps a text from being the beginning of an object of _SCHEMA."""
    others = set(_KEY.findall(text)) - _TYPES.keys()
    if not text.strip() or (text.lstrip().startswith("{") and not others):
        return None
    return f"begins with {text[:60]!r}"


def _wrong_json(text: str) -> str | None:
    """What keeps a text from being an object of _SCHEMA."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text[:60]!r} is no JSON: {error}"
    if not isinstance(value, dict) or value.keys() != _TYPES.keys():
        return f"{text[:60]!r} has other keys than the schema"
    wrong = [key for key, kind in _TYPES.items() if type(value[key]) is not kind]
    return f"{wrong[0]} is {value[wrong[0]]!r}" if wrong else None


def _wrong_call(completion: Completion) -> str | None:
    if len(completion.calls) != 1:
        return f"{len(completion.calls)} calls; the text is {completion.text[:60]!r}"
    name, arguments = completion.calls[0]
    return _wrong_json(arguments) if name == "store_city" else f"calls {name!r}"


def questions(subjects: Subjects) -> list[Question]:
    """The questions about structure."""
    named = {"tools": [_TOOL], "tool_choice": _NAMED}
    return [
        Structured(
            subjects,
            "response_format",
            {"response_format": _JSON_FORMAT},
            lambda completion: _wrong_json(completion.text),
        ),
        Structured(subjects, "named tool", named, _wrong_call),
    ]
