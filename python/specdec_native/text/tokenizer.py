"""Text to token ids and back, from the tokenizer files of a checkpoint."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import tokenizers

from specdec_native.text import chat_template as chat
from specdec_native.text import encoding
from specdec_native.text.special_token_attributes import SpecialToken, SpecialTokenId
from specdec_native.text.token_lengths import TokenLengths
from specdec_native.text.token_texts import bytes_of_entry
from specdec_native.text.tokenizer_backends import (
    TokenizerBackend,
    load_backend,
    load_with_transformers,
    make_backend,
)
from specdec_native.text.tokenizer_files import chat_templates, named_templates, optional_json

# Further arguments of transformers' apply_chat_template that are no variables of the template.
_CHAT_OPTIONS = ("return_assistant_tokens_mask", "sanitize_control_tokens")
# transformers' model_max_length for "no limit", and the least value that it treats so.
_UNLIMITED, _NO_LIMIT = int(1e30), 10**20
# Keys of tokenizer_config.json about the form in which token ids are returned.
_LAYOUT: dict[str, type | tuple[type, ...]] = {
    "padding_side": str,
    "truncation_side": str,
    "model_max_length": (int, float),
}

_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character


class Tokenizer:
    """The tokenizer of a checkpoint.

    `encode` gives the ids transformers' AutoTokenizer gives. Method names, arguments and attributes
    are transformers', too, so a script that calls `LLM.get_tokenizer()` finds what it needs. What
    is not implemented, such as offsets, is refused by name.

    Attributes:
        bos_token, eos_token, pad_token, unk_token: texts of special tokens, and with `_id` their
            ids; None where there is none. May be set.
        chat_template: Jinja source of the default chat template, None without one. May be set.
        padding_side, truncation_side: "left" or "right".
        model_max_length: tokens that truncation without max_length leaves; int(1e30): all.
    """

    bos_token = SpecialToken()
    bos_token_id = SpecialTokenId()
    eos_token = SpecialToken()
    eos_token_id = SpecialTokenId()
    pad_token = SpecialToken()
    pad_token_id = SpecialTokenId()
    unk_token = SpecialToken()
    unk_token_id = SpecialTokenId()

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
        self.padding_side = self.truncation_side = "right"
        self.model_max_length = _UNLIMITED
        self._special = backend.special_tokens()
        self._token_texts: dict[int, str] = {}
        self._token_bytes: dict[int, bytes] = {}
        self._whole_texts: dict[int, str] = {}
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
        """Loads tokenizer.json and the files beside it.

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
            templates = {"default": chat.load_chat_template(chat_template, templates)}
        special: Mapping[str, str]
        if (path / "tokenizer.json").is_file():
            backend, tokens = load_backend(path / "tokenizer.json", config)
            special = tokens.names
        else:
            hf_tokenizer = load_with_transformers(path, trust_remote_code)
            backend = make_backend(hf_tokenizer)
            special = {k: str(v) for k, v in hf_tokenizer.special_tokens_map.items()}
        tokenizer = cls(
            backend, special_tokens=special, chat_templates=templates, name_or_path=str(path)
        )
        return tokenizer._with_layout(config)

    @classmethod
    def wrap(cls, tokenizer: Any) -> Tokenizer:
        """Accepts a Tokenizer, a `tokenizers.Tokenizer` or a tokenizer of transformers."""
        if isinstance(tokenizer, Tokenizer):
            return tokenizer
        if hasattr(tokenizer, "apply_chat_template") and hasattr(tokenizer, "special_tokens_map"):
            template = getattr(tokenizer, "chat_template", None)
            wrapped = cls(
                make_backend(tokenizer),
                special_tokens={k: str(v) for k, v in tokenizer.special_tokens_map.items()},
                chat_templates=named_templates(template, "the tokenizer"),
                name_or_path=str(getattr(tokenizer, "name_or_path", "")),
            )
            return wrapped._with_layout({n: getattr(tokenizer, n, None) for n in _LAYOUT})
        if isinstance(tokenizer, tokenizers.Tokenizer):
            return cls(make_backend(tokenizer))
        raise ValueError(
            "tokenizer must be a checkpoint name or directory, or a tokenizer of specdec_native, "
            f"tokenizers or transformers; got {type(tokenizer).__name__}"
        )

    def _with_layout(self, config: Mapping[str, Any]) -> Tokenizer:
        for name, kind in _LAYOUT.items():
            if isinstance(config.get(name), kind):
                setattr(self, name, config[name])
        return self

    @overload
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    @overload
    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> Any: ...
    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> Any:
        """Token ids of a text, with the special tokens (such as BOS) the checkpoint puts around it
        unless `add_special_tokens` is False. `options` are those of a call."""
        if options:
            return self(text, add_special_tokens, **options)["input_ids"]
        return self._backend.encode(_checked_text(text), add_special_tokens)

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of every text."""
        return self._backend.encode_batch([_checked_text(t) for t in texts], add_special_tokens)

    def fewest_tokens(self, text: str) -> int:
        """Tokens that `encode` gives at least; 0 where that is not known. Tokenizes nothing."""
        known = self._token_lengths
        return 0 if known is None else known.fewest_tokens(text)

    @functools.cached_property
    def _token_lengths(self) -> TokenLengths | None:
        return self._backend.token_lengths()

    def decode(
        self, token_ids: int | Iterable[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """The text of token ids; ids outside the vocabulary have none.

        Spaces stay as the decoder writes them: `clean_up_tokenization_spaces=True` is refused.
        """
        if options:
            self._refuse(options)
        if isinstance(token_ids, int) or getattr(token_ids, "shape", None) == ():
            token_ids = [int(token_ids)]  # type: ignore[arg-type]
        ids = token_ids if isinstance(token_ids, list) else [int(i) for i in token_ids]
        return self._backend.decode(ids, skip_special_tokens)

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """`decode` of every sequence."""
        return [self.decode(ids, skip_special_tokens, **options) for ids in sequences]

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True, **options: Any
    ) -> encoding.BatchEncoding:
        """Token ids and attention mask of a text or of each of several, as transformers' tokenizers
        return them: `result["input_ids"]`, `result.input_ids`.

        `options` are transformers': padding, truncation, max_length, pad_to_multiple_of,
        padding_side, truncation_side, return_tensors ("pt" or "np"), return_attention_mask.
        Raises ValueError for others, and where they cannot be met.
        """
        texts = [text] if isinstance(text, str) else [_checked_text(each) for each in text]
        layout = self._layout(options)
        rows = self.encode_batch(texts, add_special_tokens)
        for i, row in enumerate(rows):
            if layout.is_too_long(row):
                content = self.encode(texts[i], add_special_tokens=False)
                rows[i] = layout.cut(row, content)
        return layout.pack(rows, not isinstance(text, str), self.pad_token_id)

    encode_plus = batch_encode_plus = __call__  # transformers' older names

    def _layout(self, options: Mapping[str, Any]) -> encoding.Layout:
        own = {name: value for name, value in options.items() if name in encoding.OPTIONS}
        self._refuse({name: value for name, value in options.items() if name not in own})
        is_limited = self.model_max_length < _NO_LIMIT
        return encoding.Layout(**own).within(
            {
                "max_length": int(self.model_max_length) if is_limited else None,
                "padding_side": self.padding_side,
                "truncation_side": self.truncation_side,
            }
        )

    def pad(self, encoded: Mapping[str, Any], padding: bool | str = True, **options: Any) -> Any:
        """Pads the result of __call__ for several texts; `options` as in __call__."""
        layout = self._layout({"truncation": False, **options, "padding": padding})
        rows = [list(row) for row in encoded["input_ids"]]
        return layout.pack(rows, is_many=True, pad_token_id=self.pad_token_id)

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

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token alone, which may be a part of a character."""
        data = self._token_bytes.get(token_id)
        if data is None:
            text = self.token_text(token_id)
            entry = self._backend.id_to_token(token_id)
            if entry is not None and token_id not in self._special:
                data = bytes_of_entry(entry, text)
            if data is None:
                data = text.encode("utf-8", "replace")
            self._token_bytes[token_id] = data
        return data

    def hidden_tokens(
        self, skip_special_tokens: bool, shown: Collection[str] = ()
    ) -> Collection[int]:
        """Ids of the tokens to leave out of a text: special tokens except those with `shown` texts,
        or none."""
        if not skip_special_tokens:
            return ()
        if not shown:
            return self._special
        return {token_id for token_id, text in self._special.items() if text not in shown}

    def whole_text(self, token_id: int) -> str:
        """The text that the token adds after any whole character; "" if it depends on the text."""
        text = self._whole_texts.get(token_id)
        if text is None:
            text = ""
            if self._backend.joins_bytes:
                text = self._backend.decode([token_id], False)
            if _REPLACEMENT in text:  # a part of a character
                text = ""
            self._whole_texts[token_id] = text
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

    @property
    def all_special_tokens(self) -> list[str]:
        """Texts of the special tokens, by rising id."""
        return [self._special[token_id] for token_id in self.all_special_ids]

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the default chat template, or of the only one; None if there is none."""
        if len(self._chat_templates) == 1:
            return next(iter(self._chat_templates.values()))
        return self._chat_templates.get("default")

    @chat_template.setter
    def chat_template(self, template: str | Mapping[str, str] | None) -> None:
        self._chat_templates = named_templates(template, "the tokenizer")

    @property
    def template_for_tools(self) -> str | None:
        """The chat template of conversations with tools, None without one."""
        return self._chat_templates.get("tool_use", self.chat_template)

    def get_chat_template(
        self,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The source of a template by its name, or of the one for a conversation with or without
        tools; Jinja source is returned as it is. Raises ValueError if there is none, or none of
        several is the default."""
        if chat_template is None:
            chat_template = self.template_for_tools if tools else self.chat_template
        elif "{" not in chat_template:  # no template shows anything without
            if chat_template not in self._chat_templates:
                raise ValueError(
                    f"chat_template: {chat_template!r:.80} is neither Jinja source nor one of the "
                    f"checkpoint's templates: {', '.join(sorted(self._chat_templates)) or 'none'}"
                )
            chat_template = self._chat_templates[chat_template]
        if chat_template is None:
            raise ValueError(self._why_no_template())
        return chat_template

    def render_chat(
        self,
        messages: Sequence[chat.Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        must_show_all: bool = False,
    ) -> str:
        """The prompt text of a conversation.

        `chat_template` is Jinja source or the name of one of the checkpoint's templates. Raises
        ValueError if there is none, or none of several is the default, and, with `must_show_all`,
        for a message that the template leaves out.
        """
        source = self.get_chat_template(chat_template, tools)
        of_model = f" of {Path(self.name_or_path).name}" if self.name_or_path else ""
        is_own = chat_template is not None and chat_template not in self._chat_templates
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "variables": {**self.special_tokens_map, **(template_kwargs or {})},
            "source": "chat_template" if is_own else f"the chat template{of_model}",
        }
        text = chat.render(source, messages, **options)
        if must_show_all:
            chat.check_all_shown(source, messages, **options)
        chat.warn_of_unread(
            source,
            messages,
            tools=tools,
            variables=template_kwargs or (),
            source=options["source"],
        )
        return text

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

        `return_dict` gives the ids with their attention mask. `template_kwargs` are options of
        __call__, also as `tokenizer_kwargs`, and variables of the template.
        Raises ValueError for tokenizer options that are not implemented.
        """
        own = (*encoding.OPTIONS, *_CHAT_OPTIONS)
        options = {"truncation": False, **(template_kwargs.pop("tokenizer_kwargs", None) or {})}
        options |= {name: template_kwargs.pop(name) for name in own if name in template_kwargs}
        layout = self._layout(options)
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
        rows = self.encode_batch(texts, add_special_tokens=False)
        encoded = layout.pack([layout.cut(row, row) for row in rows], many, self.pad_token_id)
        return encoded if return_dict else encoded["input_ids"]

    def _refuse(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for an unsupported transformers option that is not at its default."""
        for name, value in options.items():
            if value and name != "verbose":
                raise ValueError(
                    f"{name}={value!r} is not supported by this tokenizer: leave it out, or use "
                    f"transformers.AutoTokenizer.from_pretrained({self.name_or_path!r})"
                )


def _checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"text to encode must be a str, got {type(text).__name__}")
    return text
