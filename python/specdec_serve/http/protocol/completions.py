"""The body of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pydantic
import pydantic_core

from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.common import GenerationFields, Integer

_MOST_PROMPTS = 1024


def _read_prompt(value: Any, read: pydantic.ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except pydantic.ValidationError:
        raise pydantic_core.PydanticCustomError(
            "prompt",
            "prompt must be text, a list of texts, a list of token ids or a list of such lists",
        ) from None


class CompletionRequest(GenerationFields):
    """One or several texts to continue."""

    prompt: Annotated[
        str | list[Integer] | list[str] | list[list[Integer]],
        pydantic.WrapValidator(_read_prompt),
    ]
    max_tokens: int = pydantic.Field(16, ge=0)
    logprobs: Integer | None = None
    echo: bool = False
    suffix: str | None = None
    add_special_tokens: bool = True

    def check(self) -> None:
        """Raises ApiError for values that are refused for any engine."""
        super().check()
        if not self.prompt:
            raise bad_request("prompt is empty; give text or token ids", "prompt")
        if self.num_prompts > _MOST_PROMPTS:
            raise bad_request(
                f"prompt has {self.num_prompts} entries; send at most {_MOST_PROMPTS} in a request",
                "prompt",
            )
        if self.suffix:
            self._check_suffix()
        if self.max_tokens == 0 and not self.echo:
            raise bad_request(
                "max_tokens must be at least 1; 0 is for echo=true, which then answers with the "
                "prompt alone",
                "max_tokens",
            )

    def _check_suffix(self) -> None:
        """Raises ApiError for what a prompt with a text after the answer cannot have."""
        if not all(isinstance(text, str) for text in self.texts):
            raise bad_request("suffix needs a prompt of text, not of token ids", "suffix")
        if self.echo:
            raise bad_request(
                "echo is not supported with suffix: the prompt ends behind the answer's place",
                "echo",
            )
        if self.truncate_prompt_tokens is not None:
            raise bad_request(
                "truncate_prompt_tokens is not supported with suffix; shorten prompt and suffix",
                "truncate_prompt_tokens",
            )

    @property
    def texts(self) -> Sequence[Any]:
        """The prompts: texts or lists of token ids."""
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt

    def field_names(self) -> dict[str, str]:
        """Engine fields with a different name in the body, with that name."""
        return super().field_names() | ({"prefix": "prompt"} if self.suffix else {})

    @property
    def num_prompts(self) -> int:
        """The number of texts or lists of token ids."""
        return len(self.texts)

    @property
    def is_echo_only(self) -> bool:
        """Whether the answer is the prompt alone."""
        return self.max_tokens == 0
