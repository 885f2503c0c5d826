"""A tiny world to train heads in: texts that follow a rule, and a head that can learn it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.batch_order import BatchOrder
from specdec_lab.training.heads.base import DepthOutput, HeadFiles, TrainableHead
from specdec_lab.training.optimizers import make_optimizers
from specdec_lab.training.target import TargetWeights
from specdec_lab.training.trainer import Trainer
from specdec_lab.training.training_options import TrainingOptions

VOCAB_SIZE = 23
HIDDEN_SIZE = 16
PROMPT_TOKENS = 4


def target() -> TargetWeights:
    """A target whose state at a token is the scoring row of the next one, three times as long."""
    generator = torch.Generator().manual_seed(5)
    rows = F.normalize(torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=generator), dim=1) * 4
    return TargetWeights(
        directory=Path(),
        config={"num_hidden_layers": 2},
        embedding=rows,
        lm_head=rows,
        norm=torch.ones(HIDDEN_SIZE),
        name="rule",
    )


def next_token(token_ids: Tensor) -> Tensor:
    return (token_ids * 5 + 3) % VOCAB_SIZE


@dataclasses.dataclass
class MemoryExamples:
    """Examples in memory."""

    examples: list[Example]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(example.token_ids) for example in self.examples])

    def load(self, indices: Sequence[int]) -> list[Example]:
        return [self.examples[i] for i in indices]


def examples(count: int, seed: int = 0) -> MemoryExamples:
    generator = torch.Generator().manual_seed(seed)
    rows = target().lm_head
    made = []
    for _ in range(count):
        length = int(torch.randint(8, 30, (1,), generator=generator))
        token_ids = torch.randint(VOCAB_SIZE, (1,), generator=generator).repeat(length)
        for i in range(1, length):
            token_ids[i] = next_token(token_ids[i - 1])
        states = rows[next_token(token_ids[:-1])].unsqueeze(1)
        is_answer = torch.arange(length) >= PROMPT_TOKENS
        made.append(Example(token_ids.int(), is_answer, states.bfloat16()))
    return MemoryExamples(made)


def assert_equal(first: Example, second: Example) -> None:
    assert torch.equal(first.token_ids, second.token_ids)
    assert torch.equal(first.is_answer, second.is_answer)
    assert torch.equal(first.states, second.states)
    assert first.is_greedy == second.is_greedy


class LinearHead(TrainableHead):
    """A matrix a depth, from the state at j - 1 to what is said of the token at j + 1 + d."""

    def __init__(self, draft_ids: Tensor, max_depth: int = 2) -> None:
        super().__init__(target(), draft_ids, max_depth)
        self.matrices = nn.Parameter(torch.zeros(max_depth, HIDDEN_SIZE, HIDDEN_SIZE))

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        return []

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        nn.init.normal_(self.matrices, 0.0, 0.1, generator=generator)

    def states(self, batch: Batch, d: int) -> Tensor:
        """The states of rows j + 1, for each j."""
        states: Tensor = torch.tanh(batch.final_hidden[:, :-1] @ self.matrices[d]) * 4
        return states

    def outputs(self, batch: Batch, generator: torch.Generator) -> list[DepthOutput]:
        num_tokens = batch.token_ids.shape[1]
        outputs = []
        for d in range(self.max_depth):
            example, row = batch.is_scored[:, 1 + d :].nonzero(as_tuple=True)
            positions = example * num_tokens + row + 1 + d
            weight = self.target.lm_head[self.draft_ids]
            outputs.append(DepthOutput(self.states(batch, d)[example, row], positions, weight))
        return outputs

    @torch.no_grad()
    def draft(self, batch: Batch, depth: int) -> Tensor:
        weight = self.target.lm_head[self.draft_ids]
        drafts = [(self.states(batch, d) @ weight.T).argmax(-1) for d in range(depth)]
        return F.pad(self.draft_ids[torch.stack(drafts, -1)], (0, 0, 1, 0))

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def files(self, layout: str) -> HeadFiles:
        raise NotImplementedError


def trainer(
    options: TrainingOptions,
    given: MemoryExamples,
    *,
    num_draft_ids: int = VOCAB_SIZE,
    autocast: torch.dtype | None = None,
) -> tuple[LinearHead, Trainer]:
    head = LinearHead(torch.arange(num_draft_ids), options.max_depth)
    head.initialise(torch.Generator().manual_seed(options.seed))
    order = BatchOrder(
        given.lengths,
        range(len(given.examples)),
        batch_tokens=options.batch_tokens,
        epochs=options.epochs,
        seed=options.seed,
    )
    optimizers = make_optimizers(head, options, order.num_steps)
    return head, Trainer(head, optimizers, given, order, options, autocast=autocast)
