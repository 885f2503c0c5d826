"""Text to token ids and back, from the tokenizer files of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from specdec_native.checkpoints.text_files import is_file, read_text
from specdec_native.text import chat_template as chat
from specdec_native.text.tokenizer_backends import (
    TokenizerBackend,
    load_backend,
    load_with_transformers,
    make_backend,
)
from specdec_native.text.tokenizer_files import (
    chat_templates,
    named_templates,
    optional_json,
)

# Arguments of transformers' apply_chat_template that are no variables of the template.
_TOKENIZER_OPTIONS = (
    *("padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs"),
    *("return_assistant_tokens_mask", "sanitize_control_tokens"),
)

_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character


class Tokenizer:
    """The tokenizer of a checkpoint.

    `encode` gives the ids transformers' AutoTokenizer gives. Method names and arguments are
    transformers', too, so a script that calls `LLM.get_tokenizer()` finds what it needs. What is
    not here, such as padding and tensors, is refused by name.
    """

    def __init__(
        self,
        backend: TokenizerBackend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        name_or_path: str = "",
    ) -> None:
        """`special_tokens` maps names such as "eos_token" to token text; `chat_templates` maps
        template names to Jinja source, "default" being the one ordinarily used."""
        self._backend = backend
        self.special_tokens_map: dict[str, str] = dict(special_tokens or {})
        self._chat_templates = dict(chat_templates or {})
        self.name_or_path = name_or_path
        self._special = backend.special_tokens()
        self._token_texts: dict[int, str] = {}
        self._whole_texts: dict[tuple[int, bool], str] = {}
        self._vocab = backend.vocab()
        self._vocab_size = max(self._vocab.values(), default=-1) + 1

    @classmethod
    def from_directory(
        cls,
        directory: str | os.PathLike[str],
        *,
        chat_template: str | os.PathLike[str] | None = None,
        trust_remote_code: bool = False,
    ) -> Tokenizer:
        """Loads tokenizer.json and what stands beside it.

        `chat_template`, a file, Jinja source or the name of one of the checkpoint's, replaces the
        checkpoint's. A checkpoint that has another tokenizer format is read through transformers if
        that is installed.
        Raises ValueError naming the missing or unreadable file.
        """
        path = Path(directory)
        config = optional_json(path / "tokenizer_config.json")
        templates = chat_templates(path, config)
        if isinstance(chat_template, str) and chat_template in templates:
            templates = {"default": templates[chat_template]}
        elif chat_template is not None:
            templates = {"default": load_chat_template(chat_template, templates)}
        special: Mapping[str, str]
        if (path / "tokenizer.json").is_file():
            backend, tokens = load_backend(path / "tokenizer.json", config)
            special = tokens.names
        else:
            hf_tokenizer = load_with_transformers(path, trust_remote_code)
            backend = make_backend(hf_tokenizer)
            special = {k: str(v) for k, v in hf_tokenizer.special_tokens_map.items()}
        return cls(
            backend, special_tokens=special, chat_templates=templates, name_or_path=str(path)
        )

    @classmethod
    def wrap(cls, tokenizer: Any) -> Tokenizer:
        """Accepts a Tokenizer, a `tokenizers.Tokenizer` or a tokenizer of transformers."""
        if isinstance(tokenizer, Tokenizer):
            return tokenizer
        if hasattr(tokenizer, "apply_chat_template") and hasattr(tokenizer, "special_tokens_map"):
            template = getattr(tokenizer, "chat_template", None)
            return cls(
                make_backend(tokenizer),
                special_tokens={k: str(v) for k, v in tokenizer.special_tokens_map.items()},
                chat_templates=named_templates(template, "the tokenizer"),
                name_or_path=str(getattr(tokenizer, "name_or_path", "")),
            )
        if isinstance(tokenizer, tokenizers.Tokenizer):
            return cls(make_backend(tokenizer))
        raise ValueError(
            "tokenizer must be a checkpoint name or directory, or a tokenizer of specdec_native, "
            f"tokenizers or transformers; got {type(tokenizer).__name__}"
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens (such as BOS) the checkpoint puts around it
        unless `add_special_tokens` is False."""
        return self._backend.encode(_checked_text(text), add_special_tokens)

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of every text."""
        return self._backend.encode_batch([_checked_text(t) for t in texts], add_special_tokens)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids; ids outside the vocabulary have none."""
        if isinstance(token_ids, int):
            token_ids = [token_ids]
        ids = token_ids if isinstance(token_ids, list) else [int(i) for i in token_ids]
        return self._backend.decode(ids, skip_special_tokens)

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """`decode` of every sequence."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True, **options: Any
    ) -> dict[str, Any]:
        """Token ids and attention mask, as transformers' tokenizers return them."""
        self._refuse(options, options)
        if isinstance(text, str):
            return _with_mask(self.encode(text, add_special_tokens))
        return _with_mask(self.encode_batch(text, add_special_tokens))

    def tokenize(self, text: str) -> list[str]:
        """Vocabulary entries of a text, without special tokens around it."""
        entries: list[str] = self.convert_ids_to_tokens(self.encode(text, add_special_tokens=False))
        return entries

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, its leading space kept."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._backend.decode([token_id], False)
            token = self._backend.id_to_token(token_id)
            if token is not None and token.startswith("\u2581"):  # SentencePiece's space
                text = " " * (len(token) - len(token.lstrip("\u2581"))) + text.lstrip(" ")
            self._token_texts[token_id] = text
        return text

    def whole_text(self, token_id: int, skip_special_tokens: bool) -> str:
        """What the token adds to any text that ends with a whole character; "" if that depends."""
        text = self._whole_texts.get((token_id, skip_special_tokens))
        if text is None:
            text = ""
            if self._backend.joins_bytes:
                text = self._backend.decode([token_id], skip_special_tokens)
            if _REPLACEMENT in text:  # a part of a character
                text = ""
            self._whole_texts[token_id, skip_special_tokens] = text
        return text

    def convert_ids_to_tokens(self, token_ids: int | Iterable[int]) -> Any:
        """Vocabulary entries of token ids."""
        if isinstance(token_ids, int):
            return self._backend.id_to_token(token_ids)
        return [self._backend.id_to_token(int(i)) for i in token_ids]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """Ids of vocabulary entries."""
        if isinstance(tokens, str):
            return self._backend.token_to_id(tokens)
        return [self._backend.token_to_id(token) for token in tokens]

    def get_vocab(self) -> dict[str, int]:
        """Vocabulary entry to id, added tokens included."""
        return self._vocab

    def to_json(self) -> str | None:
        """The text of a tokenizer.json; None where the tokenizers library cannot write one."""
        return self._backend.to_json()

    @property
    def vocab_size(self) -> int:
        """Tokens this tokenizer knows; a model's output head may have more rows."""
        return self._vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def special_token_texts(self) -> Mapping[int, str]:
        """Special token id to its text."""
        return self._special

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens, rising."""
        return sorted(self._special)

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens_map.get(name)
        return None if token is None else self._backend.token_to_id(token)

    @property
    def bos_token(self) -> str | None:
        """Text of the token that begins a sequence; None without one."""
        return self.special_tokens_map.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        """Id of bos_token."""
        return self._special_id("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the token that ends a sequence; None without one."""
        return self.special_tokens_map.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of eos_token."""
        return self._special_id("eos_token")

    @property
    def pad_token(self) -> str | None:
        """Text of the padding token; None without one."""
        return self.special_tokens_map.get("pad_token")

    @pad_token.setter
    def pad_token(self, token: str | None) -> None:
        self.special_tokens_map.pop("pad_token", None)
        if token is not None:
            self.special_tokens_map["pad_token"] = token

    @property
    def pad_token_id(self) -> int | None:
        """Id of pad_token."""
        return self._special_id("pad_token")

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the default chat template, or of the only one; None if there is none."""
        if len(self._chat_templates) == 1:
            return next(iter(self._chat_templates.values()))
        return self._chat_templates.get("default")

    def render_chat(
        self,
        messages: Sequence[chat.Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        `chat_template` is Jinja source or the name of one of the checkpoint's templates. Raises
        ValueError if there is none, or none of several is the default.
        """
        if chat_template is None:
            chat_template = self.chat_template
            if tools and "tool_use" in self._chat_templates:
                chat_template = self._chat_templates["tool_use"]
        elif "{" not in chat_template:  # no template shows anything without
            if chat_template not in self._chat_templates:
                raise ValueError(
                    f"chat_template: {chat_template!r:.80} is neither Jinja source nor one of the "
                    f"checkpoint's templates: {', '.join(sorted(self._chat_templates)) or 'none'}"
                )
            chat_template = self._chat_templates[chat_template]
        if chat_template is None:
            raise ValueError(self._why_no_template())
        return chat.render(
            chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables={**self.special_tokens_map, **(template_kwargs or {})},
            source=f"the chat template of {self.name_or_path}"
            if self.name_or_path
            else "the chat template",
        )

    def _why_no_template(self) -> str:
        name = self.name_or_path or "this tokenizer"
        if not self._chat_templates:
            return (
                f"{name} has no chat template; pass chat_template, or use generate with the prompt "
                "written out"
            )
        names = sorted(self._chat_templates)
        return (
            f"{name} has several chat templates, {', '.join(names)}, and none is the default; "
            f'choose one by its name, chat_template="{names[0]}", in this call or of the engine '
            f"(--chat-template {names[0]})"
        )

    def apply_chat_template(  # noqa: PLR0917 - the order is transformers'
        self,
        conversation: Sequence[Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **template_kwargs: Any,
    ) -> Any:
        """Token ids of a conversation or of each of several; text without `tokenize`.

        `return_dict` gives the ids with their attention mask. `template_kwargs` are variables of
        the template. Raises ValueError for tokenizer options that are not here.
        """
        self._refuse(template_kwargs, _TOKENIZER_OPTIONS)
        template_kwargs = {k: v for k, v in template_kwargs.items() if k not in _TOKENIZER_OPTIONS}
        if documents is not None:
            template_kwargs["documents"] = documents
        many = bool(conversation) and not isinstance(conversation[0], Mapping)
        texts = [
            self.render_chat(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template=chat_template,
                template_kwargs=template_kwargs,
            )
            for messages in (conversation if many else [conversation])
        ]
        if not tokenize:
            return texts if many else texts[0]
        batch = self.encode_batch(texts, add_special_tokens=False)
        ids: list[Any] = batch if many else batch[0]
        return _with_mask(ids) if return_dict else ids

    def _refuse(self, options: Mapping[str, Any], names: Iterable[str]) -> None:
        """Raises ValueError for an option of transformers' that is set, among those of `names`."""
        for name in names:
            if options.get(name):
                raise ValueError(
                    f"{name}={options[name]!r} is not supported by this tokenizer: cut or pad the "
                    "lists it returns, or use transformers.AutoTokenizer.from_pretrained("
                    f"{self.name_or_path!r})"
                )


def _with_mask(ids: list[Any]) -> dict[str, Any]:
    """Token ids of a text or of several, as transformers returns them."""
    many = bool(ids) and isinstance(ids[0], list)
    mask: list[Any] = [[1] * len(row) for row in ids] if many else [1] * len(ids)
    return {"input_ids": ids, "attention_mask": mask}


def load_chat_template(template: str | os.PathLike[str], names: Collection[str] = ()) -> str:
    """Jinja source from a file's path, or as given; `names` are those of the checkpoint's."""
    if isinstance(template, str) and any(mark in template for mark in ("{%", "{{", "\n")):
        return template
    path = Path(template)
    if not is_file(path):
        known = f" nor one of the checkpoint's: {', '.join(sorted(names))}" if names else ""
        raise ValueError(f"chat_template: {path} is neither a file nor Jinja source{known}")
    return read_text(path)


def _checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"text to encode must be a str, got {type(text).__name__}")
    return text
