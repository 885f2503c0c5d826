"""Compiles structured_outputs to the core's grammars, through llguidance."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from specdec_native import _core
from specdec_native.requests.structured_outputs import (
    StructuredOutputsParams,
    WrittenGrammar,
    json_schema_of,
    plain_error,
)
from specdec_native.text.plain_tokenizer import plain_tokenizer, without_prefix_space
from specdec_native.text.tokenizer import Tokenizer

_MAX_KEPT = 64  # compiled grammars
_MAX_TEXT = 1 << 20  # characters of a grammar
_MAX_PATTERNS = 256  # of properties: llguidance compares them, in minutes for thousands
_LOCATION = re.compile(r"\bat \d+\(\d+\): |\n *\d+ \|.*", re.DOTALL)  # position of an error in Lark
_NO_LITERAL = re.compile(r"[\x00-\x1f!-/:-@\[-`{-\x7f]")  # characters that a regex writes as a code


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps the latest. Any thread may call it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        end_token_ids: Sequence[int],
        flags: Mapping[str, bool] | None = None,
    ) -> None:
        """`flags` are fields of StructuredOutputsParams that the engine sets for all requests."""
        self._flags: dict[str, Any] = {name: True for name, on in (flags or {}).items() if on}
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = list(end_token_ids)
        self._lock = threading.Lock()
        self._native: _core.LlGuidance | None = None
        self._kept: collections.OrderedDict[str, _core.Grammar] = collections.OrderedDict()

    def compile(self, params: StructuredOutputsParams) -> _core.Grammar:
        """The grammar of one request's parameters.

        Raises ValueError for a grammar that is malformed, too large or allows no text, and where
        llguidance or the files it needs are missing.
        """
        if self._flags:
            params = dataclasses.replace(params, **self._flags)
        text = grammar_text(load_llguidance(), params)
        if len(text) > _MAX_TEXT:
            raise ValueError(
                f"structured_outputs: the grammar has {len(text)} characters, and {_MAX_TEXT} are "
                "the most"
            )
        with self._lock:
            if (kept := self._kept.get(text)) is not None:
                self._kept.move_to_end(text)
                return kept
            native = self._native = self._native or self._load()
        try:
            grammar = native.compile("llguidance", text)  # others may compile meanwhile
        except ValueError as error:
            message = plain_error(str(error))
            # Else the client has not seen the text.
            if params.kind != "grammar" or isinstance(params, WrittenGrammar):
                message = _LOCATION.sub("", message)
            raise ValueError(message) from error
        with self._lock:
            self._kept[text] = grammar
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _load(self) -> _core.LlGuidance:
        source = self._tokenizer.to_json()
        if source is None:
            raise ValueError(
                "structured_outputs needs a tokenizer that the tokenizers library reads "
                "(tokenizer.json)"
            )
        if not self._end_token_ids:
            raise ValueError(
                "structured_outputs needs an end-of-sequence token; name one as eos_token_id in "
                "generation_config.json"
            )
        inner = without_prefix_space(source)
        plain = plain_tokenizer(inner)  # a grammar's texts stand for themselves

        def tokenize(text: str) -> list[int]:
            ids: list[int] = plain.encode(text, add_special_tokens=False).ids
            return ids

        try:
            return _core.LlGuidance(
                library=str(importlib.import_module("llguidance._lib").__file__),
                vocab_size=self._vocab_size,
                tokenizer_json=inner,
                end_token_ids=self._end_token_ids,
                tokenize=tokenize,
            )
        except ValueError as error:
            raise ValueError(
                f"structured_outputs: llguidance cannot use this tokenizer: {error}"
            ) from error


def load_llguidance() -> ModuleType:
    """The package. Raises ValueError where it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise ValueError(
            "structured_outputs needs llguidance: pip install 'specdec-native[structured]'"
        ) from error


def grammar_text(llguidance: ModuleType, params: StructuredOutputsParams) -> str:
    """The grammar in llguidance's own JSON. Raises ValueError naming the field."""
    try:
        if params.kind in ("json", "json_object"):
            return _json_grammar(params)
        if params.kind == "choice":
            return _choice_grammar(llguidance, params.choice or ())
        if params.kind == "structural_tag":
            return _tag_grammar(llguidance, params.structural_tag)
        return str(llguidance.grammar_from(params.kind, getattr(params, params.kind)))
    except ValueError as error:
        if f"{error}".startswith("structured_outputs"):
            raise
        raise ValueError(f"structured_outputs.{params.kind}: {error}") from error


def _choice_grammar(llguidance: ModuleType, choice: Sequence[str]) -> str:
    """The choices as one lexeme: a lexeme may have far more alternatives than a grammar rule."""
    texts = [_NO_LITERAL.sub(lambda m: f"\\x{{{ord(m[0]):x}}}", text) for text in choice]
    return str(llguidance.grammar_from("regex", f"({'|'.join(dict.fromkeys(texts))})"))


def _json_grammar(params: StructuredOutputsParams) -> str:
    return json.dumps({"grammars": [{"json_schema": json_schema_with_options(params)}]})


def json_schema_with_options(params: StructuredOutputsParams) -> Any:
    """The schema of parameters of a JSON kind, with llguidance's options in it.

    Raises ValueError naming the field.
    """
    if params.json is None:
        schema: Any = {"type": "object"}
    else:
        schema = json_schema_of(params.json)
    if (num_patterns := _num_patterns(schema)) > _MAX_PATTERNS:
        raise ValueError(
            f"structured_outputs.json: the schema has {num_patterns} patternProperties, and "
            f"{_MAX_PATTERNS} are the most"
        )
    if params.disable_additional_properties:
        _close_objects(schema)
    options: dict[str, Any] = {"whitespace_flexible": not params.disable_any_whitespace}
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    if isinstance(schema, dict):
        # Options of the schema's own come last.
        schema["x-guidance"] = options | dict(schema.get("x-guidance") or {})
    return schema


def _num_patterns(schema: Any) -> int:
    num_patterns = 0
    level = [schema]
    while level:
        node = level.pop()
        if isinstance(node, dict):
            patterns = node.get("patternProperties")
            num_patterns += len(patterns) if isinstance(patterns, dict) else 0
            level += node.values()
        elif isinstance(node, list):
            level += node
    return num_patterns


def _close_objects(schema: Any) -> None:
    if isinstance(schema, dict):
        for value in list(schema.values()):
            _close_objects(value)
        if "properties" in schema or "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
    elif isinstance(schema, list):
        for value in schema:
            _close_objects(value)


def _tag_grammar(llguidance: ModuleType, value: Any) -> str:
    where = "structured_outputs.structural_tag"
    tag = json.loads(value) if isinstance(value, str) else value
    if not isinstance(tag, Mapping):
        raise ValueError(f"{where} must be a JSON object")
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not triggers:
        raise ValueError(
            f'{where} must have "structures", a list of objects with "begin", "schema" and "end", '
            'and "triggers", a list of texts'
        )
    tags = []
    for i, structure in enumerate(structures):
        fields = structure if isinstance(structure, Mapping) else {}
        begin, end = fields.get("begin"), fields.get("end")
        trigger = next(
            (t for t in triggers if isinstance(begin, str) and begin.startswith(t)), None
        )
        if not isinstance(end, str) or trigger is None or {*fields} - {"begin", "schema", "end"}:
            raise ValueError(
                f'{where}.structures[{i}] must have "begin", which starts with a trigger, "schema" '
                'and "end", and nothing else'
            )
        tags.append(
            llguidance.StructTag(
                begin=begin, grammar=fields.get("schema") or {}, end=end, trigger=trigger
            )
        )
    if not tags:
        raise ValueError(f"{where}.structures must not be empty")
    return str(llguidance.StructTag.to_grammar(tags))
