"""What the text of an answer must look like. Names and meanings follow vLLM's."""

from __future__ import annotations

import dataclasses
import json as json_text
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_native.common.checks import check_flag, shown

# The fields that constrain the text; exactly one is given.
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# The flags that an engine may set for all its requests (structured_outputs_config).
ENGINE_FLAGS = ("disable_any_whitespace", "disable_additional_properties")


@dataclasses.dataclass
class StructuredOutputsParams:
    """What the text of an answer must look like: `SamplingParams(structured_outputs=...)`.

    Exactly one of the first six is given. Needs the extra `structured` (llguidance).

    Args:
        json: a JSON schema, as a dict, as text, or a pydantic model.
        regex: a regular expression the whole text matches, in Rust's syntax.
        choice: the texts to choose from.
        grammar: a context-free grammar, in llguidance's Lark syntax or as GBNF.
        json_object: any JSON object.
        disable_any_whitespace: write JSON compactly. This keeps small models from writing spaces
            for ever, and more tokens can be drafted.
        disable_additional_properties: allow only the named properties in JSON.
        whitespace_pattern: a regular expression for the space between the parts of JSON.
        structural_tag: JSON text or a dict {"structures": [{"begin", "schema", "end"}, ...],
            "triggers": [...]}: free text until a trigger, then a structure that begins with it.
    """

    json: str | Mapping[str, Any] | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError naming the field; the grammar itself is checked when it is compiled."""
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs must have exactly one of {', '.join(KINDS)}; "
                f"got {' and '.join(given) if given else 'none'}"
            )
        self.json_object = check_flag("structured_outputs.json_object", bool(self.json_object))
        for name in ENGINE_FLAGS:
            setattr(self, name, check_flag(f"structured_outputs.{name}", getattr(self, name)))
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"structured_outputs.{name} must be text, got {shown(value)}")
        if self.choice is not None:
            self._check_choice()

    def _check_choice(self) -> None:
        choice = self.choice
        if isinstance(choice, (str, bytes)) or not isinstance(choice, Sequence) or not choice:
            raise ValueError(
                f"structured_outputs.choice must be a list of texts, got {shown(choice)}"
            )
        for text in choice:
            if not isinstance(text, str) or not text:
                raise ValueError(
                    f"structured_outputs.choice must hold texts that are not empty, "
                    f"got {shown(text)}"
                )

    @property
    def kind(self) -> str:
        """Which of the kinds is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))


@dataclasses.dataclass
class WrittenGrammar(StructuredOutputsParams):
    """A grammar that a program wrote for its client, whom no error quotes it to."""


def plain_error(error: str) -> str:
    """llguidance's error, without its internal names for text that the client has not written."""
    if "Current row has" in error or "Too many items" in error:
        return (
            "structured_outputs: the grammar has too many parts of which any may come next, such "
            "as thousands of optional properties; make more of them required, or name fewer"
        )
    if "too many expressions" in error or "fuel" in error:
        return (
            "structured_outputs: the grammar takes too many steps to follow; make expressions and "
            "repetitions such as {1000} in it smaller"
        )
    error = re.sub(r"Enable 'coerce_one_of'.*", "write anyOf in its place", error)
    return error.removesuffix("\n<non-verbose/>")


def structured_outputs_of(value: Any, name: str) -> StructuredOutputsParams | None:
    """The argument `name` of SamplingParams: a StructuredOutputsParams, or a dict of its fields.

    Raises ValueError for anything else.
    """
    if value is None:
        return None
    if isinstance(value, StructuredOutputsParams):
        value.validate()
        return value
    if isinstance(value, Mapping):
        known = {field.name for field in dataclasses.fields(StructuredOutputsParams)}
        if unknown := [key for key in value if key not in known]:
            raise ValueError(f"{name} has no field {shown(unknown[0])}")
        return StructuredOutputsParams(**value)
    raise ValueError(f"{name} must be a StructuredOutputsParams, got {shown(value)}")


def check_structured_outputs_config(config: Any) -> dict[str, bool]:
    """The flags that an engine sets for all its requests.

    Raises ValueError unless `config` is None or a dict of them.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"structured_outputs_config must be a dict, got {shown(config)}")
    for key in config or {}:
        if key not in ENGINE_FLAGS:
            raise ValueError(
                f"structured_outputs_config has no key {shown(key)}; it has "
                + " and ".join(ENGINE_FLAGS)
            )
    return {
        key: check_flag(f"structured_outputs_config[{key!r}]", value)
        for key, value in (config or {}).items()
    }


def GuidedDecodingParams(
    *args: Any, backend: str | None = None, **fields: Any
) -> StructuredOutputsParams:
    """vLLM's older name of StructuredOutputsParams. `backend` is ignored: there is one."""
    del backend
    for name in ("backend_was_auto", "disable_fallback"):
        fields.pop(name, None)
    return StructuredOutputsParams(*args, **fields)


def json_schema_of(value: str | Mapping[str, Any] | type) -> Any:
    """The schema in `json`. Raises ValueError if it is not a schema."""
    if isinstance(value, type):
        make_schema = getattr(value, "model_json_schema", None)
        if make_schema is None:
            raise ValueError(
                f"structured_outputs.json must be a JSON schema or a pydantic model, "
                f"got {shown(value)}"
            )
        return make_schema()
    if not isinstance(value, str):
        try:
            return json_text.loads(json_text.dumps(value))  # a copy
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"structured_outputs.json is no JSON schema: {error}") from error
    try:
        return json_text.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"structured_outputs.json is no JSON: {error}") from error
