"""Where answers end: token limits, stop strings, stop tokens, contexts."""

from __future__ import annotations

from specdec_lab.conformance.experiments.base import Fields, Question, Subjects, request_of
from specdec_lab.conformance.prompts import prompts
from specdec_lab.conformance.replies import Completion, Reply
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing

_SUBJECT = "limits"
_PROMPTS_PER_ROUND = 3
_LENGTHS = (1, 2, 3, 5, 8, 13)
_STOP_CHARS = 5
_CLIENT_ERROR, _SERVER_ERROR = 400, 500


class MaxTokens(Question):
    """An answer of n tokens is the beginning of a longer one."""

    def __init__(self, subjects: Subjects) -> None:
        self._length = Row(_SUBJECT, "max_tokens is exact")
        name = "a shorter answer is the longer one's beginning"
        self._beginning = Row(_SUBJECT, name, is_promised=False)
        super().__init__(subjects, (self._length, self._beginning))

    async def ask(self, number: int) -> None:
        """Each prompt with several limits."""
        for text in prompts(number, _PROMPTS_PER_ROUND):
            longer = await self.server.ask(text, temperature=0, max_tokens=max(_LENGTHS) * 2)
            for length in _LENGTHS:
                fields: Fields = {"temperature": 0, "max_tokens": length}
                reply = await self.server.ask(text, **fields)
                request = request_of(text, **fields)
                self._length.add(_wrong_length(reply, length), request)
                begins = longer.first.text.startswith(reply.first.text.rstrip("\ufffd"))
                self._beginning.add(
                    None if begins else f"{reply.first.text!r} / {longer.first.text!r}", request
                )


def _wrong_length(reply: Reply, length: int) -> str | None:
    count = reply.num_output_tokens
    if count is None:
        raise Missing("usage")
    reason = reply.first.finish_reason
    if count > length or (count < length and reason == "length"):
        return f"{count} tokens, finish_reason {reason}"
    return None


class StopString(Question):
    """A stop string ends an answer before its first occurrence."""

    def __init__(self, subjects: Subjects) -> None:
        self._whole = Row(_SUBJECT, "stop: the text ends before the string")
        self._streamed = Row(_SUBJECT, "stop, streamed")
        super().__init__(subjects, (self._whole, self._streamed))

    async def ask(self, number: int) -> None:
        """The string is taken from the middle of an answer without it.

        A server may write another answer the second time; such a one is judged only where it has
        the string.
        """
        for text in prompts(number, _PROMPTS_PER_ROUND):
            fields: Fields = {"temperature": 0, "max_tokens": self.subjects.num_tokens}
            full = (await self.server.ask(text, **fields)).first.text
            middle = len(full) // 2
            stop = full[middle : middle + _STOP_CHARS]
            if not stop.strip() or "\ufffd" in stop:
                continue
            fields["stop"] = [stop]
            request = request_of(text, **fields)
            for row, is_streamed in ((self._whole, False), (self._streamed, True)):
                got = (await self.server.ask(text, stream=is_streamed, **fields)).first
                if stop in got.text or full.startswith(got.text):
                    row.add(_wrong_stop(got, full, stop), request)


def _wrong_stop(got: Completion, full: str, stop: str) -> str | None:
    """What is wrong with an answer that is a beginning of the full one, or has the string."""
    expected = full[: full.find(stop)]
    if got.text != expected:
        return f"the text ends {got.text[-24:]!r}, not {expected[-24:]!r}"
    return None if got.finish_reason == "stop" else f"finish_reason is {got.finish_reason}"


class StopTokens(Question):
    """stop_token_ids ends an answer; min_tokens puts the end off."""

    def __init__(self, subjects: Subjects) -> None:
        self._stop = Row(_SUBJECT, "stop_token_ids ends the answer at the token")
        self._least = Row(_SUBJECT, "min_tokens is kept")
        super().__init__(subjects, (self._stop, self._least))

    async def ask(self, number: int) -> None:
        """The token is one of an answer without the field."""
        for field in ("stop_token_ids", "min_tokens"):
            if not await self.server.reads(field):
                raise Missing(field)
        for text in prompts(number, _PROMPTS_PER_ROUND):
            fields: Fields = {"temperature": 0, "max_tokens": self.subjects.num_tokens}
            ids = (await self.server.ask(text, **fields)).first.token_ids
            if ids is None:
                raise Missing("token ids")
            at = ids.index(ids[len(ids) // 2])
            fields["stop_token_ids"] = [ids[at]]
            request = request_of(text, **fields)
            got = (await self.server.ask(text, **fields)).first
            stopped = got.token_ids or []
            if stopped[:at] == ids[:at]:  # else the server wrote another answer this time
                wrong = f"{len(stopped)} tokens, the stop token is number {at + 1}"
                self._stop.add(None if len(stopped) in (at, at + 1) else wrong, request)
            fields["min_tokens"] = least = min(at + 5, fields["max_tokens"])
            longer = await self.server.ask(text, **fields)
            count = longer.num_output_tokens or 0
            request = request_of(text, **fields)
            self._least.add(None if count >= least else f"{count} tokens, {least} asked", request)


class TooLong(Question):
    """A prompt beyond every context is refused, and harms nobody."""

    def __init__(self, subjects: Subjects) -> None:
        self._refused = Row(_SUBJECT, "a prompt beyond the context is refused")
        self._after = Row(_SUBJECT, "the next answer is as before", is_promised=False)
        super().__init__(subjects, (self._refused, self._after))

    async def ask(self, number: int) -> None:
        """An answer before, a prompt of more words than the context has tokens, and it again."""
        if number:
            return
        if self.server.max_context is None:  # no guess: the prompt may keep it busy for hours
            raise Missing("length of its context in /models")
        num_words = self.server.max_context + 1
        text = prompts(number, 1)[0]
        fields: Fields = {"temperature": 0, "max_tokens": self.subjects.num_tokens}
        before = await self.server.ask(text, **fields)
        reply = await self.server.try_ask("word " * num_words, **fields)
        is_refused = _CLIENT_ERROR <= reply.status < _SERVER_ERROR
        request = request_of(f"'word ' * {num_words}", **fields)
        self._refused.add(None if is_refused else f"HTTP {reply.status}: {reply.error}", request)
        after = await self.server.ask(text, **fields)
        is_same = before.first.text == after.first.text
        self._after.add(None if is_same else f"{after.first.text!r}", request_of(text, **fields))


def questions(subjects: Subjects) -> list[Question]:
    """The questions about ends."""
    return [question(subjects) for question in (MaxTokens, StopString, StopTokens, TooLong)]
