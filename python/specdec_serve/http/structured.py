"""From a request's fields about the answer's form to the engine's parameters."""

from __future__ import annotations

import dataclasses

from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.structured import ResponseFormat, StructuredOutputs


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A grammar for the engine, and the field of the request that asked for it."""

    params: StructuredOutputsParams
    field: str


def grammar_of(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> Grammar | None:
    """The grammar that the fields ask for; None for any text. Raises ApiError for both fields at
    once, or a bad one."""
    by_format = None if response_format is None else response_format.structured_outputs()
    if structured_outputs is None:
        return None if by_format is None else Grammar(by_format, "response_format")
    if by_format is not None:
        raise bad_request(
            "structured_outputs and response_format both say what the answer has to be like; give "
            "one of them",
            "structured_outputs",
        )
    return Grammar(structured_outputs.structured_outputs(), "structured_outputs")
