"""The bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.body import Body
from specdec_serve.http.protocol.common import Integer, check_continued


class TokenizeRequest(Body):
    """A text, or a conversation with the variables of its template."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises ApiError for input that no tokenizer accepts."""
        if (self.prompt is None) is (self.messages is None):
            raise bad_request("prompt or messages must be there, and not both", "prompt")
        check_continued(self.continue_final_message, self.add_generation_prompt)


class DetokenizeRequest(Body):
    """Token ids to convert to text."""

    tokens: list[Integer]
