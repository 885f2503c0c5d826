"""Training examples: conversations, with the target's states of their tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Example:
    """One conversation.

    Attributes:
        token_ids: int32 [tokens].
        is_answer: bool [tokens]; the tokens that the target wrote.
        states: [tokens - 1, taps, hidden size] in the dtype the target computes in: the tapped
            layers in order, the final hidden state (after the target's last norm) as the last tap.
            The last token has no states: the target never processed it.
        is_greedy: whether every answer token was the target's most likely one.
    """

    token_ids: Tensor
    is_answer: Tensor
    states: Tensor
    is_greedy: bool = True

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the target wrote."""
        return int(self.is_answer.sum())

    def to(self, device: torch.device | str) -> Example:
        """The same on another device."""
        return dataclasses.replace(
            self,
            token_ids=self.token_ids.to(device),
            is_answer=self.is_answer.to(device),
            states=self.states.to(device),
        )


@dataclasses.dataclass(frozen=True)
class Batch:
    """Examples side by side, padded on the right with zeros.

    A head's row j belongs to the token at j: it reads that token and the states at j - 1, and its
    output at depth d predicts the token at j + 1 + d, which the target decided at j + d. So a
    head's output and the target's states are matched by the place p = j + d.

    Attributes:
        token_ids: int64 [examples, tokens].
        is_answer: bool [examples, tokens].
        states: float32 [examples, tokens, taps, hidden size]; zeros where there are none.
    """

    token_ids: Tensor
    is_answer: Tensor
    states: Tensor

    @property
    def final_hidden(self) -> Tensor:
        """The input of the target's LM head: [examples, tokens, hidden size]."""
        return self.states[:, :, -1]

    @property
    def is_scored(self) -> Tensor:
        """Places p whose next token belongs to an answer: bool [examples, tokens]."""
        scored = torch.zeros_like(self.is_answer)
        scored[:, :-1] = self.is_answer[:, 1:]
        return scored

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return Batch(self.token_ids.to(device), self.is_answer.to(device), self.states.to(device))


def collate(examples: Sequence[Example], max_tokens: int) -> Batch:
    """A batch of the first `max_tokens` tokens of each example, on their device."""
    device = examples[0].token_ids.device
    lengths = [min(len(example.token_ids), max_tokens) for example in examples]
    shape = (len(examples), max(lengths))
    token_ids = torch.zeros(shape, dtype=torch.int64, device=device)
    is_answer = torch.zeros(shape, dtype=torch.bool, device=device)
    states = torch.zeros(*shape, *examples[0].states.shape[1:], device=device)
    for i, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        token_ids[i, :length] = example.token_ids[:length]
        is_answer[i, :length] = example.is_answer[:length]
        states[i, : length - 1] = example.states[: length - 1]
    return Batch(token_ids, is_answer, states)
