"""Sampled tokens against the server's own logprobs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from specdec_lab.conformance.experiments.base import LOOSE, Fields, Question, Subjects, request_of
from specdec_lab.conformance.prompts import prompts
from specdec_lab.conformance.rank_statistic import NUM_RANKS, RankStatistic
from specdec_lab.conformance.replies import Token
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing

_LEAST_P = 1e-5  # a right law is called broken once in a hundred thousand rows
_PROMPTS_PER_ROUND = 7
_SAMPLES = 8
_NUM_TOKENS = 12
_FIRST_SEED = 70_000
_TIE = 1e-4  # of a probability: nearer ones may be cut in either order

Law = Mapping[str, float]


class SampledLaw(Question):
    """One setting of sampling: the law of its tokens, and of pairs of neighbours.

    The law is made of the most likely tokens that the server lists, as probabilities before
    temperature and truncation ("raw") where the list does not depend on these, else as they are.
    """

    def __init__(self, subjects: Subjects, name: str, settings: Mapping[str, Any]) -> None:
        self._tokens = Row("sampling", f"{name}: tokens follow the logprobs", ("vllm#54282",))
        pairs = Row("sampling", f"{name}: pairs of tokens do, too")
        super().__init__(subjects, (self._tokens, pairs))
        self._settings = settings
        self._statistic = RankStatistic()
        self._outside = 0
        self._is_raw: bool | None = None
        self._request: dict[str, Any] = {}

    async def ask(self, number: int) -> None:
        """Several samples of each prompt, with seeds of their own."""
        if "top_k" in self._settings and not await self.server.reads("top_k"):
            raise Missing("top_k")
        neutral = {"temperature": 1, "top_p": 1}
        for place, text in enumerate(prompts(number, _PROMPTS_PER_ROUND)):
            fields: Fields = {**neutral, **self._settings, "max_tokens": _NUM_TOKENS}
            self._request = request_of(text, **fields)
            if self._is_raw is None:
                self._is_raw = await self._lists_are_raw(text, fields)
            begin = _FIRST_SEED + (number * _PROMPTS_PER_ROUND + place) * _SAMPLES
            replies = await asyncio.gather(
                *(
                    self.server.ask(text, with_logprobs=True, seed=begin + i, **fields)
                    for i in range(_SAMPLES)
                )
            )
            for reply in replies:
                tokens = reply.first.tokens or []
                # Those without are, in some servers, the accepted drafts: the others have no law.
                if not all(token.top for token in tokens):
                    raise Missing("alternatives of every token")
                self._take(tokens)

    async def _lists_are_raw(self, text: str, fields: Mapping[str, Any]) -> bool:
        first = {**fields, "max_tokens": 1, "seed": 1}
        set_so = await self.server.ask(text, with_logprobs=True, **first)
        first |= {"temperature": 1, "top_p": 1, "top_k": 0}
        neutral = await self.server.ask(text, with_logprobs=True, **first)
        a, b = ((r.first.tokens or [Token("", 0.0, {})])[0].top for r in (set_so, neutral))
        return all(abs(a[key] - b[key]) < LOOSE for key in a.keys() & b.keys())

    def _take(self, tokens: list[Token]) -> None:
        """Adds an answer's tokens; one whose law the list does not tell begins another run."""
        run: list[tuple[int, list[float]]] = []
        for token in tokens:
            law = self._law(token)
            ranked = [key for key, _ in _by_value(law)]
            if law and token.key in law:
                probabilities = [law[key] for key in ranked[:NUM_RANKS]]
                probabilities += [0.0] * (NUM_RANKS - len(probabilities))
                run.append((ranked.index(token.key), probabilities))
                continue
            if law:
                self._outside += 1
            self._statistic.add(run)
            run = []
        self._statistic.add(run)

    def _law(self, token: Token) -> Law:
        """The probabilities of the tokens that may be drawn; empty where the list is too short."""
        settings = self._settings if self._is_raw else {}
        num_listed = self.server.num_logprobs
        law = {key: math.exp(value) for key, value in _by_value(token.top)[:num_listed]}
        temperature = settings.get("temperature", 1)
        if temperature == 1 and not settings.keys() & {"top_p", "top_k"}:
            # The rest is one class, of which the drawn token may be one.
            return law | ({} if token.key in law else {token.key: 0.0})
        if temperature != 1:  # the law among the listed, which needs no others
            powers = {key: value ** (1 / temperature) for key, value in law.items()}
            return _normalised(powers) if token.key in law else {}
        if "top_k" in settings:
            return _cut(law, settings["top_k"])
        return _nucleus(law, settings["top_p"])

    def conclude(self) -> None:
        """One case per row: the whole run."""
        if self.is_over:
            return
        statistic = self._statistic
        if not statistic.is_long_enough:
            self._end("too few tokens for a verdict")
            return
        for row, p in (
            (self._tokens, statistic.p_value()),
            (self.rows[1], statistic.pair_p_value()),
        ):
            row.note = f"p = {p:.2g} over {statistic.num_tokens:,} tokens"
            row.add(None if p > _LEAST_P else row.note, self._request)
        if self._outside:
            what = f"{self._outside} tokens that {self._settings} rules out"
            self._tokens.add(what, self._request)


def _normalised(weights: Mapping[str, float]) -> Law:
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()} if total else {}


def _by_value(law: Law) -> list[tuple[str, float]]:
    """The tokens, the most likely first. Ties go by name: a server may list the drawn one first."""
    return sorted(law.items(), key=lambda item: (-item[1], item[0]))


def _nucleus(law: Law, top_p: float) -> Law:
    """The fewest most likely tokens that reach top_p; empty where the list does not tell them."""
    total = 0.0
    for count, value in enumerate(law.values(), 1):
        total += value
        if abs(total - top_p) < LOOSE:
            return {}
        if total > top_p:
            return _cut(law, count)
    return {}


def _cut(law: Law, count: int) -> Law:
    """The law of the first `count` tokens; empty where the next one is as likely as the last."""
    values = list(law.values())
    if len(values) <= count or values[count - 1] - values[count] < _TIE * values[count]:
        return {}
    return _normalised(dict(list(law.items())[:count]))


_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "temperature 1": {"temperature": 1},
    "temperature 0.6": {"temperature": 0.6},
    "top_p 0.8": {"top_p": 0.8},
    "top_k 5": {"top_k": 5},
}


def questions(subjects: Subjects) -> list[Question]:
    """The questions about sampling."""
    return [SampledLaw(subjects, name, settings) for name, settings in _SETTINGS.items()]
