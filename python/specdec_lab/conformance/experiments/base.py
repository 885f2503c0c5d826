"""What the questions share: the servers, and the comparison of two answers."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lab.conformance.replies import (
    Reply,
    id_difference,
    logprob_difference,
    text_difference,
)
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing, Refused, Server

LOOSE = 1e-3  # nats: what another order of float sums may change in a logprob
_SERVER_ERROR = 500

Fields = dict[str, Any]
"""Members of a request."""


@dataclasses.dataclass(frozen=True)
class Subjects:
    """The servers that are asked.

    Attributes:
        drafted: the server under test.
        plain: the same model without drafts; None where there is no such server.
        num_tokens: the length of ordinary answers.
    """

    drafted: Server
    plain: Server | None
    num_tokens: int


class Question(abc.ABC):
    """One thing that the servers are asked, round after round, and the rows that it fills."""

    def __init__(self, subjects: Subjects, rows: Sequence[Row]) -> None:
        self.subjects = subjects
        self.server = subjects.drafted
        self.rows = rows
        self.is_over = False

    @abc.abstractmethod
    async def ask(self, number: int) -> None:
        """Asks what belongs to a round, and adds the cases to the rows.

        Raises Missing where the server lacks what it takes, Refused where it does not answer.
        """

    async def run_round(self, number: int) -> None:
        """Asks. What is missing or refused goes to the rows and ends the question."""
        try:
            await self.ask(number)
        except Missing as missing:
            self._end(f"the server has no {missing}")
        except Refused as refused:
            status = refused.reply.status
            if 0 < status < _SERVER_ERROR and refused.reply.error:
                self._end(f"the server refuses: {refused.reply.error}")
            else:
                self.rows[0].add(f"no answer: {refused}", {})
                self.is_over = True

    def conclude(self) -> None:  # noqa: B027 - most questions know all as they ask
        """Adds what is known only when all rounds are over."""

    def _end(self, why: str) -> None:
        self.is_over = True
        for row in self.rows:
            row.missing = row.missing or why


class SameAnswers:
    """Four rows that say how equal two ways of asking are: text, token ids, logprobs.

    OpenAI's API promises none of them: a server may say that it does.
    """

    def __init__(self, subject: str, *reports: str) -> None:
        self.text, self.ids, self.loose, self.bits = self.rows = tuple(
            Row(subject, name, reports, is_promised=False)
            for name in (
                "same text",
                "same token ids",
                f"logprobs within {LOOSE:g}",
                "logprobs to the last bit",
            )
        )

    def add(self, a: Reply, b: Reply, request: Mapping[str, Any]) -> None:
        """Compares two answers to one request, completion by completion."""
        self.add_texts(a, b, request)
        if len(a.completions) != len(b.completions):
            return
        for x, y in zip(a.completions, b.completions, strict=True):
            if x.ids is None or y.ids is None:
                self.ids.missing = "the server has no token ids"
            else:
                self.ids.add(id_difference(x, y), request)
            if x.tokens is None or y.tokens is None:
                self.loose.missing = self.bits.missing = "the server has no logprobs"
            else:
                self.loose.add(logprob_difference(x, y, LOOSE), request)
                self.bits.add(logprob_difference(x, y, 0.0), request)

    def add_texts(self, a: Reply, b: Reply, request: Mapping[str, Any]) -> None:
        """Compares what every answer has, as where one of the two was asked without logprobs."""
        if len(a.completions) != len(b.completions):
            counts = f"{len(a.completions)} completions / {len(b.completions)}"
            self.text.add(counts, request)
            return
        for x, y in zip(a.completions, b.completions, strict=True):
            self.text.add(text_difference(x, y), request)


def request_of(prompt: str, **fields: Any) -> dict[str, Any]:
    """A request as the report shows it."""
    return {"prompt": prompt, **fields}
