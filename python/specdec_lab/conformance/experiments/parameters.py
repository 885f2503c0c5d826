"""What logprobs, penalties and biases must do to an answer, told by the server's own logprobs."""

from __future__ import annotations

import collections
import math

from specdec_lab.conformance.experiments.base import LOOSE, Fields, Question, Subjects, request_of
from specdec_lab.conformance.prompts import prompts
from specdec_lab.conformance.replies import Reply, Token
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing

_SUBJECT = "parameters"
_PROMPTS_PER_ROUND = 4
_PRESENCE, _FREQUENCY = 1.0, 0.5
_REPEATED = "la la la la la la la la la la la la la la la la la la la la"
_ID = "token_id:"


class Logprobs(Question):
    """Greedy answers have one entry of logprobs per token, and it is the most likely one."""

    def __init__(self, subjects: Subjects) -> None:
        self._count = Row(_SUBJECT, "logprobs have one entry per token")
        self._sum = Row(_SUBJECT, "probabilities add up to 1 at most")
        self._best = Row(_SUBJECT, "greedy takes the most likely token")
        super().__init__(subjects, (self._count, self._sum, self._best))

    async def ask(self, number: int) -> None:
        """A few prompts, whole."""
        for text in prompts(number, _PROMPTS_PER_ROUND):
            fields: Fields = {"temperature": 0, "max_tokens": self.subjects.num_tokens}
            reply = await self.server.ask(text, with_logprobs=True, **fields)
            request = request_of(text, **fields)
            tokens = reply.first.tokens or []
            self._count.add(_wrong_count(reply), request)
            sums = [sum(math.exp(value) for value in token.top.values()) for token in tokens]
            most = max(sums, default=0.0)
            self._sum.add(None if most <= 1 + LOOSE else f"they add up to {most:.6g}", request)
            others = [token for token in tokens if _best_of(token) > token.logprob]
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
    """Penalties take a repetitive answer apart, and each token is the best after its penalty."""

    def __init__(self, subjects: Subjects) -> None:
        self._effect = Row(_SUBJECT, "frequency_penalty changes a repetitive answer")
        self._law = Row(_SUBJECT, "penalties: each token is the best after its penalty")
        super().__init__(subjects, (self._effect, self._law))

    async def ask(self, number: int) -> None:
        """The same prompts with penalties and without."""
        fields: Fields = {"temperature": 0, "max_tokens": self.subjects.num_tokens}
        penalised = {**fields, "presence_penalty": _PRESENCE, "frequency_penalty": _FREQUENCY}
        for text in [_REPEATED, *prompts(number, _PROMPTS_PER_ROUND)]:
            free = (await self.server.ask(text, with_logprobs=True, **fields)).first
            held = (await self.server.ask(text, with_logprobs=True, **penalised)).first
            request = request_of(text, **penalised)
            if _is_repetitive(free.tokens or []):
                is_other = free.text != held.text
                self._effect.add(None if is_other else "the answer is the same", request)
            if await self.server.reads("return_tokens_as_token_ids"):
                self._law.add(_against_penalty(free.tokens or [], held.tokens or []), request)
            else:  # such a server may count the prompt's tokens, too
                self._law.missing = "not known which tokens the server counts"


def _is_repetitive(tokens: list[Token]) -> bool:
    """Whether a token is repeated with so little lead that penalties must take another one."""
    seen: collections.Counter[str] = collections.Counter()
    for token in tokens:
        others = [value for key, value in token.top.items() if not seen[key]]
        penalty = _PRESENCE + _FREQUENCY * seen[token.key]
        if seen[token.key] and others and token.logprob - penalty < max(others) - LOOSE:
            return True
        seen[token.key] += 1
    return False


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
            ids = _ids_of(await self.server.ask(text, with_logprobs=True, **fields))
            if len(ids) < 2:
                continue
            forced = {**fields, "logit_bias": {str(ids[-1]): 100}}
            got = _ids_of(await self.server.ask(text, with_logprobs=True, **forced))
            is_held = set(got) == {ids[-1]}
            request = request_of(text, **forced)
            self._forced.add(None if is_held else f"token ids {got}, not {ids[-1]}", request)
            banned = {**fields, "logit_bias": {str(ids[0]): -100}}
            got = _ids_of(await self.server.ask(text, with_logprobs=True, **banned))
            wrong = f"token {ids[0]} is in the answer" if ids[0] in got else None
            self._banned.add(wrong, request_of(text, **banned))


def _ids_of(reply: Reply) -> list[int]:
    first = reply.first
    if first.token_ids is not None:
        return first.token_ids
    keys = [token.key for token in first.tokens or ()]
    if not all(key.startswith(_ID) for key in keys):
        raise Missing("token ids")
    return [int(key.removeprefix(_ID)) for key in keys]


def questions(subjects: Subjects) -> list[Question]:
    """The questions about parameters."""
    return [Logprobs(subjects), Penalties(subjects), LogitBias(subjects)]
