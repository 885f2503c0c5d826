"""Fields that constrain the answer's form: response_format and structured_outputs."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.body import Fields
from specdec_serve.http.protocol.nesting import check_nesting


class JsonSchemaFormat(Fields):
    """The schema of a response_format. `strict` is accepted: schemas are always kept to."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = pydantic.Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's field, with vLLM's structural tags."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: Any = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None

    def structured_outputs(self) -> StructuredOutputsParams | None:
        """The engine's parameters; None for text. Raises ApiError for a format without content."""
        if self.json_schema is not None and self.type != "json_schema":
            raise bad_request(
                f'response_format of the type "{self.type}" has no "json_schema"; set its type to '
                '"json_schema", or leave the schema out',
                "response_format",
            )
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutputsParams(json_object=True)
        if self.type == "json_schema":
            if self.json_schema is None:
                raise bad_request(
                    'response_format of the type "json_schema" needs "json_schema"',
                    "response_format",
                )
            return schema_params(
                self.json_schema.schema_, "response_format.json_schema", "response_format"
            )
        if self.format is None and (self.structures is None or self.triggers is None):
            raise bad_request(
                'response_format of the type "structural_tag" needs "structures" and "triggers"',
                "response_format",
            )
        members = {
            "type": self.type,
            "format": self.format,
            "structures": self.structures,
            "triggers": self.triggers,
        }
        given = {name: value for name, value in members.items() if value is not None}
        return made({"structural_tag": given}, "response_format")


class StructuredOutputs(Fields):
    """vLLM's field."""

    json_: str | dict[str, Any] | None = pydantic.Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def structured_outputs(self) -> StructuredOutputsParams:
        """The engine's parameters. Raises ApiError unless exactly one kind is given."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        given["json"] = given.pop("json_")
        return made(given, "structured_outputs")


def schema_params(schema: dict[str, Any] | None, path: str, field: str) -> StructuredOutputsParams:
    """The parameters for a JSON schema. Raises ApiError naming `path` where it is missing."""
    if schema is None:
        raise bad_request(f'{path} needs "schema"', field)
    return made({"json": schema}, field)


def made(given: dict[str, Any], field: str) -> StructuredOutputsParams:
    """The parameters. Raises ApiError naming the field where they are wrong."""
    for name in ("json", "structural_tag"):
        check_nesting(given.get(name), field)
    try:
        return StructuredOutputsParams(**given)
    except ValueError as error:
        raise bad_request(str(error), field) from error
