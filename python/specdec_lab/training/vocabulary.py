"""Chooses the tokens that a head scores: the tokens that the target writes most."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.store import ExampleStore


def count_answers(
    store: ExampleStore, vocab_size: int, indices: Iterable[int] | None = None
) -> Tensor:
    """How often each token occurs in the answers of a store: int64 [vocab_size].

    `indices` are the examples that count, such as those held out; None for all.
    Raises TrainingError where the answers have a token outside of the vocabulary.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for token_ids in store.answer_tokens(indices):
        if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
            raise TrainingError(
                f"answers have tokens outside of the vocabulary [0, {vocab_size}); make the data "
                "with the target that the head is for",
                store.directory,
            )
        counts += torch.bincount(token_ids.long(), minlength=vocab_size)
    return counts


def draft_vocabulary(counts: Tensor, size: int, always: Iterable[int] = ()) -> Tensor:
    """The tokens that a head scores, rising: int64 [size].

    `always` (the tokens that end a turn) comes first, then the most frequent tokens, lower ids
    first where counts are equal. A size of 0, or one not below the vocabulary's, selects all.
    Raises TrainingError where `always` does not fit.
    """
    vocab_size = len(counts)
    if size < 0:
        raise TrainingError(f"draft_vocab_size must be at least 0, got {size}")
    if size == 0 or size >= vocab_size:
        return torch.arange(vocab_size)
    needed = sorted({token for token in always if 0 <= token < vocab_size})
    if len(needed) > size:
        raise TrainingError(
            f"draft_vocab_size must be at least {len(needed)}, the number of tokens that end a "
            f"turn, got {size}"
        )
    precedence = counts.clone()
    precedence[needed] = torch.iinfo(torch.int64).max
    # A stable sort keeps lower ids first, also among tokens that never occur.
    chosen = precedence.sort(descending=True, stable=True).indices[:size]
    return chosen.sort().values


def coverage(counts: Tensor, draft_ids: Tensor) -> float:
    """Share of the counted tokens that are in `draft_ids`; 0 where nothing was counted."""
    total = int(counts.sum())
    return int(counts[draft_ids].sum()) / total if total else 0.0
