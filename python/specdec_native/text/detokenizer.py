"""Turns the token ids of one completion into text as they arrive, and finds stop strings in it."""

from __future__ import annotations

import codecs
from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from specdec_native.text.stop_strings import StopMatcher, StopStrings
from specdec_native.text.token_texts import BytesOfTokens

_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
_CONTEXT_TOKENS = 6
_MAX_CHAR_TOKENS = 4  # a UTF-8 character has at most four bytes, so tokens


class TokenDecoder(BytesOfTokens, Protocol):
    """The part of a tokenizer that detokenisation needs."""

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids."""

    def whole_text(self, token_id: int) -> str:
        """The text that the token adds after any whole character; "" if it depends on the text."""


class TextStream:
    """Decodes a growing token sequence.

    The pieces returned by `push` and `flush` add up to the text a decoder makes of the whole
    sequence, and none of them ends in half a character. A byte-fallback decoder may, for bytes that
    never become a character, retract characters it had completed; those stay as they were given.

    Only a window of tokens is decoded each time. It starts one piece back, at a character boundary,
    because decoders treat the first token of their input differently. A token whose text is the
    same anywhere needs no decoding.
    """

    def __init__(
        self,
        decoder: TokenDecoder,
        *,
        hidden: Container[int] = (),
        context: Sequence[int] = (),
        unspaced: Mapping[int, str] | None = None,
    ) -> None:
        """`hidden` tokens are left out. `context` precedes the sequence and is not returned.
        `unspaced` maps the special tokens between which a decoder's spaces are dropped to their
        text."""
        self._decoder = decoder
        self._hidden = hidden
        self._unspaced = unspaced or {}
        self._last_token: int | None = None
        self._start = 0  # window start
        self._ids: list[int] = []
        self._read = 0  # tokens before this are returned in full
        self._done = ""  # text of the window that is returned
        if context:
            self._begin_after(context)

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that became certain."""
        if token_id in self._hidden:
            return ""
        if len(self._ids) == self._read and not self._unspaced:
            text = self._decoder.whole_text(token_id)
            if text:
                self._ids, self._start, self._read, self._done = [token_id], 0, 1, text
                return text
        self._ids.append(token_id)
        follows_special = self._last_token in self._unspaced
        self._last_token = token_id
        new, complete = self._advance(self._decode(self._start))
        if follows_special and token_id in self._unspaced and complete:
            return self._unspaced[token_id]
        return new

    def flush(self) -> str:
        """Ends the sequence; returns what was held back, without the half character it ends in."""
        text = self._decode(self._start)
        if not text.startswith(self._done):
            text, self._done = self._decode(self._read), ""
        new = text[len(self._done) :]
        if new.endswith(_REPLACEMENT) and self._ends_in_half():
            new = new.rstrip(_REPLACEMENT)
        self._done = text
        return new

    def _ends_in_half(self) -> bool:
        held = b"".join(map(self._decoder.token_bytes, self._ids[-_MAX_CHAR_TOKENS:]))
        _, num_whole = codecs.utf_8_decode(held, "replace", False)
        return num_whole < len(held)

    def _advance(self, text: str) -> tuple[str, bool]:
        stable = text.rstrip(_REPLACEMENT)
        complete = len(stable) == len(text)
        if not stable.startswith(self._done):
            if self._done.startswith(stable):
                return "", False
            self._start, self._done = self._read, ""
            text = self._decode(self._start)
            stable = text.rstrip(_REPLACEMENT)
            complete = len(stable) == len(text)
        new = stable[len(self._done) :]
        self._done = stable
        if complete and new:
            del self._ids[: self._read]
            self._start, self._read = 0, len(self._ids)
            self._done = self._decode(0)
        return new, complete

    def _decode(self, start: int) -> str:
        return self._decoder.decode(self._ids[start:] if start else self._ids)

    def _begin_after(self, context: Sequence[int]) -> None:
        """Starts the window with the end of the context: enough of it to have text and to begin
        with a whole character."""
        size = _CONTEXT_TOKENS
        while True:
            self._ids = [token_id for token_id in context[-size:] if token_id not in self._hidden]
            # The last tokens may be the beginning of a character that the sequence completes.
            for num_pending in range(_MAX_CHAR_TOKENS):
                self._read = max(0, len(self._ids) - num_pending)
                text = self._decoder.decode(self._ids[: self._read])
                if not text.endswith(_REPLACEMENT):
                    break
            self._done = text.rstrip(_REPLACEMENT)
            if size >= len(context) or (self._done and not text.startswith(_REPLACEMENT)):
                return
            size *= 4


class Detokenizer:
    """The text of one completion, ended by the first stop string that completes.

    A stop string is looked for after every token past `min_tokens`, so the result does not depend
    on how many tokens arrive at once.
    """

    def __init__(
        self,
        stream: TextStream,
        *,
        stop: StopStrings | Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
        records_lengths: bool = False,
    ) -> None:
        self._stream = stream
        if not isinstance(stop, StopStrings):
            stop = StopStrings(stop)
        self._stop = StopMatcher(stop) if stop else None
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._finished = False
        self.text = ""
        self.stop_string: str | None = None  # the one that ended the completion
        # Characters that each token added, if recorded; a stop string may cut the text shorter.
        self.lengths: list[int] | None = [] if records_lengths else None

    def extend(self, token_ids: Sequence[int], *, stop_token_last: bool = False) -> int:
        """Adds tokens and returns how many of them belong to the completion: all, unless a stop
        string completes before the last. `stop_token_last` says the last one is a stop or
        end-of-sequence token, which has no text unless stop strings are to be included."""
        num_with_text = len(token_ids)
        if stop_token_last and not self._include_stop:
            num_with_text -= 1
        for i, token_id in enumerate(token_ids):
            self._num_tokens += 1
            piece = self._stream.push(token_id) if i < num_with_text else ""
            self.text += piece
            if self.lengths is not None:
                self.lengths.append(len(piece))
            if piece and self._stop is not None and self._cut(piece, self._stop):
                return i + 1
        return len(token_ids)

    def finish(self) -> None:
        """Ends the completion: text that was held back becomes final."""
        if not self._finished and self.stop_string is None:
            self.text += self._stream.flush()
        self._finished = True

    def num_certain_chars(self) -> int:
        """Length of the text that no later token can take back: an unfinished completion may end in
        the beginning of a stop string."""
        if (
            self._stop is None
            or self._finished
            or self._include_stop
            or self.stop_string is not None
        ):
            return len(self.text)
        return len(self.text) - self._stop.num_begun

    def _cut(self, piece: str, matcher: StopMatcher) -> bool:
        """Looks for a stop string that ends in the text's last piece and cuts the text there."""
        end = len(self.text) - len(piece)
        for char in piece:
            end += 1
            found = matcher.push(char)
            if found is not None and self._num_tokens > self._min_tokens:
                self.stop_string = found
                self.text = self.text[: end if self._include_stop else end - len(found)]
                return True
        return False
