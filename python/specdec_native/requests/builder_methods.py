"""Methods of engines that forward to their RequestBuilder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_native.requests.inputs import Prompt
from specdec_native.requests.request_builder import GenerationDefaults, RequestBuilder
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.chat_template import Message
from specdec_native.text.infill import InfillPrompt
from specdec_native.text.tokenizer import Tokenizer


class BuilderMethods:
    """Tokenizer, defaults and prompts of an engine's model."""

    _builder: RequestBuilder

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ValueError if there is none."""
        return self._builder.text.need_tokenizer("this")

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ValueError if there is none."""
        return self.tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be given and is returned."""
        return self._builder.text.tokenizer is not None

    @property
    def eos_token_ids(self) -> list[int]:
        """Tokens that end a completion unless ignore_eos is set."""
        return list(self._builder.eos_token_ids)

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() takes without sampling_params: values of generation_config.json."""
        return self._builder.default_params()

    def generation_defaults(self) -> GenerationDefaults:
        """A server's defaults for requests that do not set their own sampling parameters."""
        return self._builder.generation_defaults()

    def chat_prompt(self, messages: Sequence[Message], **template_options: Any) -> Prompt:
        """The prompt of a conversation; `template_options` are those of Tokenizer.render_chat."""
        return self._builder.chat_prompt(messages, **template_options)

    def infill_prompt(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        *,
        add_special_tokens: bool = True,
    ) -> InfillPrompt:
        """The prompt whose answer is the text between `prefix` and `suffix`.

        For models with fill-in tokens, such as Qwen2.5-Coder. Generate from its `token_ids`, with
        its `stop_token_ids` in the sampling parameters. `files` are names and texts of other files
        that the model is to know; `add_special_tokens` puts before the prompt what the tokenizer
        puts before a text, such as BOS.
        Raises ValueError for a model without fill-in tokens, and a text that can never fit.
        """
        infiller = self._builder.infiller(prefix=prefix, suffix=suffix, files=files)
        return infiller.prompt(prefix, suffix, files, add_special_tokens=add_special_tokens)
