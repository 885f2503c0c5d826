"""The body of POST /infill."""

from __future__ import annotations

import pydantic

from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.body import Fields
from specdec_serve.http.protocol.common import GenerationFields, Integer

_NOT_SHOWN = ("prompt_logprobs", "return_token_ids", "truncate_prompt_tokens")


class InfillFile(Fields):
    """Another file that the model is to know."""

    filename: str = "tmp"
    text: str


class InfillRequest(GenerationFields):
    """The texts around a gap, in the form of llama.cpp's server."""

    input_prefix: str
    input_suffix: str
    input_extra: list[InfillFile] = pydantic.Field(default_factory=list)
    prompt: str = ""
    n_predict: int | None = pydantic.Field(None, ge=-1)
    n_probs: Integer = pydantic.Field(0, ge=0)
    t_max_predict_ms: float = 0.0
    response_fields: list[str] | None = None

    def check(self) -> None:
        """Raises ApiError for values that are refused for any engine."""
        super().check()
        if self.n != 1:
            raise bad_request("n must be 1: /infill writes one middle", "n")
        for name in _NOT_SHOWN:
            if getattr(self, name):
                raise bad_request(f"{name} is not for /infill; use /v1/completions", name)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of the answer; None for as many as fit."""
        return None if self.n_predict == -1 else self.n_predict

    def field_names(self) -> dict[str, str]:
        """Engine fields with a different name in the body, with that name."""
        return super().field_names() | {
            "prefix": "input_prefix",
            "suffix": "input_suffix",
            "files": "input_extra",
            "prompt": "input_prefix",
            "max_tokens": "n_predict",
            "logprobs": "n_probs",
        }
