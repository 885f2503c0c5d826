"""Measures what the engine accepts of a head's drafts, token by token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.engine import Engine
from specdec_native.requests.inputs import TokensPrompt
from specdec_native.requests.outputs import DraftTree
from specdec_native.requests.sampling_params import SamplingParams

Prompts = Sequence[Sequence[int]]

_BLOCK = 8  # answer tokens that are counted as one observation: neighbours are alike
_QUANTILE = 2.576  # of the normal distribution, for intervals of 99%


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate and its interval of 99% confidence."""

    value: float
    low: float
    high: float

    @classmethod
    def of_mean(cls, observations: npt.NDArray[np.float64]) -> Interval:
        """The mean of independent observations; of fewer than two, nothing is known."""
        count = len(observations)
        mean = float(observations.mean()) if count else 0.0
        if count < 2:
            return cls(mean, -1.0, 1.0)
        half = _QUANTILE * float(observations.std(ddof=1)) / math.sqrt(count)
        return cls(mean, mean - half, mean + half)


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """How the drafts of one head fared in greedy answers.

    Attributes:
        answers: the tokens of each answer.
        trees: what each step of each answer drafted, a chain.
    """

    answers: Sequence[Sequence[int]]
    trees: Sequence[Sequence[DraftTree]]

    @property
    def drafted(self) -> list[npt.NDArray[np.bool_]]:
        """For each answer, which of its tokens came from a kept draft, without the first token,
        which comes with the prompt."""
        found = []
        for answer, trees in zip(self.answers, self.trees, strict=True):
            marks = np.zeros(len(answer), np.bool_)
            for tree in trees:
                kept = sum(token.is_accepted for token in tree.tokens)
                marks[tree.num_tokens : tree.num_tokens + kept] = True
            found.append(marks[1:])
        return found

    @property
    def share(self) -> Interval:
        """The share of answer tokens that came from drafts, by which heads are compared: 1 - 1 /
        (tokens a step)."""
        return Interval.of_mean(_blocks([marks.astype(np.float64) for marks in self.drafted]))

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step emits, after the prompt's."""
        share = self.share.value
        return 1.0 / (1.0 - share) if share < 1.0 else math.inf

    @property
    def by_depth(self) -> list[float]:
        """The share of first, second, ... drafts that were kept."""
        proposed: list[int] = []
        kept: list[int] = []
        for tree in (tree for trees in self.trees for tree in trees):
            for depth, token in enumerate(tree.tokens):
                if depth == len(proposed):
                    proposed.append(0)
                    kept.append(0)
                proposed[depth] += 1
                kept[depth] += token.is_accepted
        return [k / p for k, p in zip(kept, proposed, strict=True)]

    def first_drafts(self) -> list[tuple[int, Sequence[int], int]]:
        """Of each step its first draft, the answer, and the draft's index in it."""
        return [
            (tree.tokens[0].token_id, answer, tree.num_tokens)
            for answer, trees in zip(self.answers, self.trees, strict=True)
            for tree in trees
            if tree.tokens
        ]

    def gain_over(self, other: Acceptance) -> Interval:
        """By how much the share is above another head's in the same answers, token by token.

        Raises ValueError where the answers are not the same.
        """
        if [list(a) for a in self.answers] != [list(a) for a in other.answers]:
            raise ValueError("the two heads were measured in different answers")
        pairs = zip(self.drafted, other.drafted, strict=True)
        return Interval.of_mean(_blocks([a.astype(np.float64) - b for a, b in pairs]))


def measure(
    target: Path,
    drafter: Mapping[str, Any],
    prompts: Prompts,
    *,
    depth: int,
    max_tokens: int,
    engine_options: Mapping[str, Any],
) -> Acceptance:
    """Has an engine answer the prompts greedily, with `depth` drafts in every step.

    Raises what Engine raises where it refuses the head.
    """
    config = {**drafter, "num_speculative_tokens": depth, "draft_length_policy": "fixed"}
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, record_draft_trees=True, detokenize=False
    )
    with Engine(target, **engine_options, speculative_config=config) as engine:
        outputs = engine.generate(
            [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts],
            params,
            use_tqdm=False,
        )
    completions = [output.outputs[0] for output in outputs]
    return Acceptance(
        [list(completion.token_ids) for completion in completions],
        [completion.draft_trees or [] for completion in completions],
    )


def _blocks(series: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Means of neighbouring values. Values after the last whole block count where a series has no
    whole block."""
    means = [
        part.mean()
        for values in series
        for part in np.split(values, range(_BLOCK, len(values), _BLOCK))
        if len(part) == _BLOCK or len(part) == len(values) > 0
    ]
    return np.array(means, np.float64)
