"""What logprobs, penalties and biases must do to an answer, told by the server's own logprobs."""

from __future__ import annotations

import collections
import math
import re

from specdec_lab.conformance.experiments.base import LOOSE, Fields, Question, Subjects, request_of
from specdec_lab.conformance.prompts import prompts
from specdec_lab.conformance.replies import Completion, Reply, Token
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing

_SUBJECT = "parameters"
_PROMPTS_PER_ROUND = 4
_PRESENCE, _FREQUENCY = 1.0, 0.5
_REPEATED = "la la la la la la la la la la la la la la la la la la la la"
_MOST = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
_MANY_REPEATS = 12  # of a piece of text: no token outlives so many of the highest penalties
_NUM_REPEATED = 48  # tokens of an answer that may repeat a piece so often
_PIECES = re.compile(r"(.{1,4}?)\1{11,}", re.S)
_SOME_IDS = (300, 500)  # of tokens, in every vocabulary but the smallest


class Logprobs(Question):
    """Greedy answers have one entry of logprobs per token, and it is the most likely one."""

    def __init__(self, subjects: Subjects) -> None:
        self._given = Row(_SUBJECT, "logprobs come when they are asked for")
        self._count = Row(_SUBJECT, "logprobs have one entry per token")
        reports = ("llama.cpp#27972", "vllm#17876")
        self._listed = Row(_SUBJECT, "each token has its most likely alternatives", reports)
        self._sum = Row(_SUBJECT, "probabilities add up to 1 at most")
        self._best = Row(_SUBJECT, "greedy takes the most likely token")
        rows = (self._given, self._count, self._listed, self._sum, self._best)
        super().__init__(subjects, rows)

    async def ask(self, number: int) -> None:
        """A few prompts, whole."""
        if self.server.ignores_logprobs and not self.server.has_logprobs:
            self._given.add("HTTP 200, without logprobs", {"logprobs": 5})
            raise Missing("logprobs")
        for text in prompts(number, _PROMPTS_PER_ROUND):
            fields: Fields = {"temperature": 0, "max_tokens": self.subjects.num_tokens}
            reply = await self.server.ask(text, with_logprobs=True, **fields)
            request = request_of(text, **fields)
            tokens = reply.first.tokens or []
            self._given.add(None if tokens else "no logprobs", request)
            self._count.add(_wrong_count(reply), request)
            bare = [index for index, token in enumerate(tokens) if not token.top]
            wrong = f"{len(bare)} of {len(tokens)} tokens have none: {bare[:3]}" if bare else None
            self._listed.add(wrong, request)
            sums = [sum(math.exp(value) for value in token.top.values()) for token in tokens]
            most = max(sums, default=0.0)
            self._sum.add(None if most <= 1 + LOOSE else f"they add up to {most:.6g}", request)
            others = [token for token in tokens if _best_of(token) > token.logprob + LOOSE]
            wrong = f"{others[0].key!r} has {others[0].logprob:.6g}" if others else None
            self._best.add(wrong, request)


def _best_of(token: Token) -> float:
    return max(token.top.values(), default=token.logprob)


def _wrong_count(reply: Reply) -> str | None:
    entries, tokens = len(reply.first.tokens or ()), reply.num_output_tokens
    if tokens is None:
        raise Missing("usage")
    # A stop token that ends an answer is counted, and may be left out of the logprobs.
    is_stop = reply.first.finish_reason == "stop" and entries == tokens - 1
    return None if entries == tokens or is_stop else f"{entries} entries, {tokens} tokens"


class Penalties(Question):
    """Penalties take a repetitive answer apart, and each token is the best after its penalty.

    A server may count the prompt's tokens, too: OpenAI's "text so far" does not say.
    """

    def __init__(self, subjects: Subjects) -> None:
        self._effect = Row(_SUBJECT, "frequency_penalty changes a repetitive answer")
        self._law = Row(_SUBJECT, "penalties: each token is the best after its penalty")
        super().__init__(subjects, (self._effect, self._law))

    async def ask(self, number: int) -> None:
        """The same prompts with penalties and without."""
        has_logprobs = self.server.has_logprobs
        counts_answer = await self.server.reads("return_tokens_as_token_ids")  # vLLM's ways
        if not (has_logprobs and counts_answer):
            self._law.missing = "not known which tokens the server counts"
        length = self.subjects.num_tokens
        lengths = {_REPEATED: max(length, _NUM_REPEATED)}
        lengths |= dict.fromkeys(prompts(number, _PROMPTS_PER_ROUND), length)
        for text, max_tokens in lengths.items():
            fields: Fields = {"temperature": 0, "max_tokens": max_tokens}
            penalised = {**fields, "presence_penalty": _PRESENCE, "frequency_penalty": _FREQUENCY}
            whole = await self.server.ask(text, with_logprobs=has_logprobs, **fields)
            free = whole.first
            if counts_answer and has_logprobs:
                held = (await self.server.ask(text, with_logprobs=True, **penalised)).first
                tokens = free.tokens or []
                request = request_of(text, **penalised)
                self._law.add(_against_penalty(tokens, held.tokens or []), request)
                if _is_far_from_best(tokens):
                    self._effect.add(_same_text(free, held), request)
            elif _num_repeats(free.text, whole.num_output_tokens or 0) >= _MANY_REPEATS:
                most: Fields = {**fields, **_MOST}
                held = (await self.server.ask(text, **most)).first
                self._effect.add(_same_text(free, held), request_of(text, **most))


def _same_text(free: Completion, held: Completion) -> str | None:
    return None if free.text != held.text else "the answer is the same"


def _is_far_from_best(tokens: list[Token]) -> bool:
    """Whether a token is repeated with so little lead that penalties must take another one."""
    seen: collections.Counter[str] = collections.Counter()
    for token in tokens:
        others = [value for key, value in token.top.items() if not seen[key]]
        penalty = _PRESENCE + _FREQUENCY * seen[token.key]
        if seen[token.key] and others and token.logprob - penalty < max(others) - LOOSE:
            return True
        seen[token.key] += 1
    return False


def _num_repeats(text: str, num_tokens: int) -> int:
    """How often an answer repeats one piece of text, counted in tokens, at the least.

    What stands beside the repeats has a token per byte at the most, and so has the piece.
    """
    found = _PIECES.search(text)
    if found is None:
        return 0
    beside = text[: found.start()] + text[found.end() :]
    return (num_tokens - len(beside.encode())) // len(found[1].encode())


def _against_penalty(free: list[Token], held: list[Token]) -> str | None:
    """Where a penalised answer takes a token that is not the best after penalties.

    As far as the two answers go together, the free one's logprobs are those before penalties.
    """
    seen: collections.Counter[str] = collections.Counter()

    def score(token: Token, key: str) -> float:
        penalty = _PRESENCE + _FREQUENCY * seen[key] if seen[key] else 0.0
        return token.top[key] - penalty

    for index, (before, taken) in enumerate(zip(free, held, strict=False)):
        if taken.key in before.top:
            best = max(before.top, key=lambda key: score(before, key))
            if score(before, best) > score(before, taken.key) + LOOSE:
                return f"token {index} is {taken.key!r}; after penalties {best!r} is better"
        if taken.key != before.key:
            return None
        seen[taken.key] += 1
    return None


class LogitBias(Question):
    """A bias of 100 forces a token, one of -100 bans it."""

    def __init__(self, subjects: Subjects) -> None:
        self._forced = Row(_SUBJECT, "logit_bias of 100 forces the token")
        self._banned = Row(_SUBJECT, "logit_bias of -100 bans the token")
        super().__init__(subjects, (self._forced, self._banned))

    async def ask(self, number: int) -> None:
        """The tokens are those of an answer without the field."""
        fields: Fields = {"temperature": 0, "max_tokens": 8}
        for text in prompts(number, _PROMPTS_PER_ROUND):
            free = await self._ask(text, fields)
            if free.ids is None:
                await self._ask_for_effect(text, free.text, fields)
                continue
            first, last = free.ids[0], free.ids[-1]
            forced = {**fields, "logit_bias": {str(last): 100}}
            got = (await self._ask(text, forced)).ids or []
            wrong = None if set(got) == {last} else f"token ids {got}, not {last}"
            self._forced.add(wrong, request_of(text, **forced))
            banned = {**fields, "logit_bias": {str(first): -100}}
            got = (await self._ask(text, banned)).ids or []
            wrong = f"token {first} is in the answer" if first in got else None
            self._banned.add(wrong, request_of(text, **banned))

    async def _ask(self, text: str, fields: Fields) -> Completion:
        has_logprobs = self.server.has_logprobs
        return (await self.server.ask(text, with_logprobs=has_logprobs, **fields)).first

    async def _ask_for_effect(self, text: str, free: str, fields: Fields) -> None:
        """Where answers have no ids: two forced tokens cannot both write the free answer."""
        self._banned.missing = "the server has no token ids"
        biases = [{str(token): 100} for token in _SOME_IDS]
        asked: list[Fields] = [{**fields, "logit_bias": bias} for bias in biases]
        texts = [(await self._ask(text, forced)).text for forced in asked]
        is_ignored = texts == [free] * len(texts)
        wrong = "the answer is the same as without" if is_ignored else None
        self._forced.add(wrong, request_of(text, **asked[-1]))


def questions(subjects: Subjects) -> list[Question]:
    """The questions about parameters."""
    return [Logprobs(subjects), Penalties(subjects), LogitBias(subjects)]
