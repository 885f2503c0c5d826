"""Predicts how many drafted tokens a target accepts, from its greedy answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specdec_lab.training.batch import Example, collate
from specdec_lab.training.batch_order import cut
from specdec_lab.training.distributed import Ranks
from specdec_lab.training.heads.base import TrainableHead


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Acceptance of draft chains, counted as in SpeculativeDecodingMetrics.

    Attributes:
        proposed: steps that drafted the first, second, ... token.
        accepted: steps that kept the first, second, ... token.
    """

    proposed: list[int]
    accepted: list[int]

    @property
    def num_steps(self) -> int:
        """Steps that drafted."""
        return self.proposed[0] if self.proposed else 0

    @property
    def rates(self) -> list[float]:
        """Share of all steps that kept the first, second, ... token."""
        return [count / max(self.num_steps, 1) for count in self.accepted]

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step: the accepted tokens and one more."""
        return 1.0 + sum(self.accepted) / max(self.num_steps, 1)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A request made from a held-out example.

    Attributes:
        start, end: the answer's tokens in the example; the tokens before are the prompt.
    """

    start: int
    end: int


def answers(is_answer: Tensor) -> Iterator[Answer]:
    """The answers of a conversation, each of which an engine can generate again."""
    nothing = torch.zeros(1, dtype=torch.int8)
    edges = torch.diff(is_answer.to(torch.int8), prepend=nothing, append=nothing)
    starts = (edges == 1).nonzero().flatten().tolist()
    ends = (edges == -1).nonzero().flatten().tolist()
    return (Answer(s, e) for s, e in zip(starts, ends, strict=True) if s > 0)


def walk(token_ids: Tensor, drafts: Tensor, answer: Answer) -> list[tuple[int, int]]:
    """Simulates the steps in which an engine would decode an answer: (drafted, accepted) of each.

    The first token comes from the prompt's pass and is the first root. A step never drafts the
    last token of an answer, because its own pass emits one token anyway.

    Args:
        token_ids: [tokens].
        drafts: [tokens, depth], the chain that is drafted at each root.
        answer: the answer's tokens in the example.
    """
    depth = drafts.shape[1]
    wanted = torch.full((len(token_ids), depth), -1)  # -1 equals no draft
    for d in range(min(depth, len(token_ids) - 1)):
        wanted[: -1 - d, d] = token_ids[1 + d :]
    num_right = (drafts == wanted).cumprod(1).sum(1).tolist()
    steps = []
    root = answer.start
    while (missing := answer.end - 1 - root) > 1:
        drafted = min(depth, missing - 1)
        accepted = min(num_right[root], drafted)
        steps.append((drafted, accepted))
        root += accepted + 1
    return steps


def evaluate(
    head: TrainableHead,
    examples: Sequence[Example],
    depth: int,
    *,
    max_length: int,
    batch_tokens: int,
    ranks: Ranks | None = None,
) -> Acceptance:
    """The acceptance of chains of `depth` tokens on greedy answers; ranks share the work."""
    ranks = ranks or Ranks()
    counts = torch.zeros(2, depth, dtype=torch.int64)
    lengths = torch.tensor([min(len(e.token_ids), max_length) for e in examples]).numpy()
    order = sorted(ranks.part(range(len(examples))), key=lambda i: int(lengths[i]))
    for group in cut(order, lengths, batch_tokens):
        chosen = [examples[i] for i in group]
        batch = collate(chosen, max_length)
        drafts = head.draft(batch.to(head.draft_ids.device), depth).cpu()
        for i, index in enumerate(group):
            length = int(lengths[index])
            token_ids = batch.token_ids[i, :length]
            for answer in answers(batch.is_answer[i, :length]):
                for drafted, accepted in walk(token_ids, drafts[i, :length], answer):
                    counts[0, :drafted] += 1
                    counts[1, :accepted] += 1
    proposed, accepted_counts = ranks.sum(counts).long().tolist()
    return Acceptance(proposed, accepted_counts)
