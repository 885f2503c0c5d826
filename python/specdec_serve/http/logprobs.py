"""Logprobs in OpenAI's formats for completions and for chat."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_native.requests.logprobs import FlatLogprobs, PromptLogprobs, SampleLogprobs
from specdec_native.text.token_texts import TokenTexts
from specdec_native.text.tokenizer import Tokenizer
from specdec_serve.http.chunks import dumps

# Requests for logprobs set SamplingParams.flat_logprobs, so all functions here read FlatLogprobs.

_MAX_SHIFT = 8  # consecutive characters that a tokenizer may write differently
_LOWEST = -9999.0  # in place of minus infinity, which JSON does not have


class TokenNames:
    """Names tokens by their text, or as "token_id:7"."""

    def __init__(self, tokenizer: Tokenizer | None, *, as_token_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_token_ids or tokenizer is None

    def name(self, token_id: int, text: str | None) -> str:
        """The token's name; `text` is the text that it adds in its context."""
        return f"token_id:{token_id}" if self._as_ids or text is None else text

    def text(self, token_id: int) -> str:
        """The text of a token alone."""
        return "" if self._tokenizer is None else self._tokenizer.token_text(token_id)

    def first_text(self, token_id: int) -> str:
        """The text that a token adds as the first of a text; empty for a part of a character."""
        return "" if self._tokenizer is None else TokenTexts(self._tokenizer).texts([token_id])[0]

    def bytes_of(self, token_id: int, text: str | None, length: int | None = None) -> bytes:
        """The token's bytes, parts of characters too; `text` is what it adds in its context.

        A token that the answer leaves out, such as the end of the sequence, has no bytes. `length`
        is the number of characters that a chosen token has added, None for other tokens.
        """
        if self._tokenizer is None or text is None:
            return b""
        if text and length == 0 and "\ufffd" not in text:
            return b""
        data = self._tokenizer.token_bytes(token_id)
        # A text may lack the space of its first token.
        return text.encode() if data == b" " + text.encode() else data


class CompletionLogprobs:
    """The `logprobs` of one choice of a completion, piece by piece."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._offset = 0  # where the text of the next token begins

    def piece(
        self,
        token_ids: Sequence[int],
        logprobs: SampleLogprobs | None,
        text_lengths: Sequence[int] | None,
    ) -> str:
        """The logprobs of generated tokens, which added `text_lengths` characters to the text."""
        lists = _Lists()
        self._add(lists, token_ids, as_flat(logprobs), text_lengths)
        return lists.json()

    def with_prompt(
        self,
        prompt_text: str,
        prompt_token_ids: Sequence[int],
        prompt_logprobs: PromptLogprobs | None,
        *,
        token_ids: Sequence[int],
        logprobs: SampleLogprobs | None,
        text_lengths: Sequence[int] | None,
    ) -> str:
        """The logprobs of the prompt, whose first token has none, and of the first new tokens.

        For an aborted request, the prompt's logprobs may be incomplete or missing.
        """
        lists = _Lists()
        flat = as_flat(prompt_logprobs)
        position = 0
        for i, token_id in enumerate(prompt_token_ids[: len(flat.start_indices)]):
            begin, end = flat.start_indices[i], flat.end_indices[i]
            text = flat.decoded_tokens[begin] if begin < end else self._names.first_text(token_id)
            # The text may lack the tokens that a tokenizer puts around it, and the space that a
            # tokenizer puts before it.
            position, length = _find_piece(prompt_text, position, text or "")
            lists.add(self._names, position, token_id, text, flat, i)
            position += length
        self._offset = len(prompt_text)
        self._add(lists, token_ids, as_flat(logprobs), text_lengths)
        return lists.json()

    def _add(
        self,
        lists: _Lists,
        token_ids: Sequence[int],
        flat: FlatLogprobs,
        text_lengths: Sequence[int] | None,
    ) -> None:
        for i, token_id in enumerate(token_ids):
            text = flat.decoded_tokens[flat.start_indices[i]]
            lists.add(self._names, self._offset, token_id, text, flat, i)
            if text_lengths is not None:
                self._offset += text_lengths[i]


class _Lists:
    """The four lists of a completion's logprobs, as JSON."""

    def __init__(self) -> None:
        self._offsets: list[str] = []
        self._logprobs: list[str] = []
        self._tokens: list[str] = []
        self._tops: list[str] = []

    def add(  # noqa: PLR0917 - one position
        self,
        names: TokenNames,
        offset: int,
        token_id: int,
        text: str | None,
        flat: FlatLogprobs,
        index: int,
    ) -> None:
        """Adds a position; a position without entries has no logprobs."""
        self._offsets.append(str(offset))
        self._tokens.append(dumps(names.name(token_id, text)))
        begin, end = flat.start_indices[index], flat.end_indices[index]
        if begin == end:
            self._logprobs.append("null")
            self._tops.append("null")
            return
        self._logprobs.append(_number(flat.logprobs[begin]))
        top: dict[str, float] = {}
        for i in range(begin, end):
            name = names.name(flat.token_ids[i], flat.decoded_tokens[i])
            # Tokens that add the same text (halves of characters add none) share an entry.
            top[name] = max(top.get(name, _LOWEST), flat.logprobs[i])
        entries = ",".join(f"{dumps(name)}:{_number(x)}" for name, x in top.items())
        self._tops.append(f"{{{entries}}}")

    def json(self) -> str:
        """The JSON object."""
        return (
            f'{{"text_offset":[{",".join(self._offsets)}],'
            f'"token_logprobs":[{",".join(self._logprobs)}],'
            f'"tokens":[{",".join(self._tokens)}],"top_logprobs":[{",".join(self._tops)}]}}'
        )


def chat_logprobs(
    names: TokenNames,
    logprobs: SampleLogprobs | None,
    num_top: int,
    text_lengths: Sequence[int] | None,
) -> str:
    """The `logprobs` of a chat's choice: its tokens, each with the `num_top` likeliest; -1: all.

    text_lengths: how many characters each token has added to the text.
    """
    tokens = token_logprobs(names, logprobs, num_top, text_lengths)
    return f'{{"content":[{",".join(tokens)}]}}'


def token_logprobs(
    names: TokenNames,
    logprobs: SampleLogprobs | None,
    num_top: int,
    text_lengths: Sequence[int] | None,
    *,
    has_ids: bool = False,
) -> list[str]:
    """The tokens of chat_logprobs(), each as JSON, and with its id if `has_ids`."""
    flat = as_flat(logprobs)
    content = []
    lengths = [None] * len(flat) if text_lengths is None else text_lengths
    for begin, end, length in zip(flat.start_indices, flat.end_indices, lengths, strict=True):
        last = end if num_top < 0 else min(end, begin + 1 + num_top)
        tops = [_chat_token(names, flat, i, has_ids=has_ids) + "}" for i in range(begin + 1, last)]
        chosen = _chat_token(names, flat, begin, length, has_ids=has_ids)
        content.append(f'{chosen},"top_logprobs":[{",".join(tops)}]}}')
    return content


def _chat_token(
    names: TokenNames,
    flat: FlatLogprobs,
    i: int,
    length: int | None = None,
    *,
    has_ids: bool = False,
) -> str:
    """A token without its closing brace; `length` as in TokenNames.bytes_of()."""
    token_id, text = flat.token_ids[i], flat.decoded_tokens[i]
    name = names.name(token_id, text)
    in_bytes = ",".join(map(str, names.bytes_of(token_id, text, length)))
    own_id = f'"id":{token_id},' if has_ids else ""
    logprob = _number(flat.logprobs[i])
    return f'{{{own_id}"token":{dumps(name)},"logprob":{logprob},"bytes":[{in_bytes}]'


def prompt_logprobs_json(prompt_logprobs: PromptLogprobs | None) -> str:
    """The `prompt_logprobs` of a choice or chat: null, then one object per token, by token id."""
    if prompt_logprobs is None:
        return "null"
    flat = as_flat(prompt_logprobs)
    positions = []
    for begin, end in zip(flat.start_indices, flat.end_indices, strict=True):
        entries = {
            flat.token_ids[i]: (
                f'"{flat.token_ids[i]}":{{"logprob":{_number(flat.logprobs[i])},'
                f'"rank":{dumps(flat.ranks[i])},'
                f'"decoded_token":{dumps(flat.decoded_tokens[i])}}}'
            )
            for i in range(begin, end)
        }
        positions.append(f"{{{','.join(entries.values())}}}" if entries else "null")
    return f"[{','.join(positions)}]"


def as_flat(logprobs: SampleLogprobs | PromptLogprobs | None) -> FlatLogprobs:
    """Logprobs that were requested with flat_logprobs; None becomes empty."""
    if logprobs is None:
        return FlatLogprobs()
    assert isinstance(logprobs, FlatLogprobs)
    return logprobs


def _number(logprob: float) -> str:
    return repr(logprob) if logprob > _LOWEST else "-9999.0"


def _find_piece(text: str, position: int, piece: str) -> tuple[int, int]:
    """The position of a token's text `piece` in `text`, at or after `position`, and its length.

    A tokenizer may put a space before the text or write characters differently. Then the token is
    searched a little further on.
    """
    forms = [form for form in (piece, piece.lstrip(" ")) if form]
    for form in forms:
        if text.startswith(form, position):
            return position, len(form)
    for form in forms if position > 0 or piece.strip() else ():
        at = text.find(form, position, position + len(form) + _MAX_SHIFT)
        if at >= 0:
            return at, len(form)
    return position, 0
