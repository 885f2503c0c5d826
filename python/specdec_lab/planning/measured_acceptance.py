"""Measures how many drafts are kept, on answers to prompts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lab.evaluation.decoding_methods import Method
from specdec_lab.evaluation.method_report import Row, Workload, make_rows
from specdec_lab.evaluation.prompts import Prompt
from specdec_lab.evaluation.runner import Runner, Task, with_small_cache
from specdec_lab.planning.speedup import Acceptance
from specdec_native.checkpoints import hub


def measure_acceptance(
    model: str | os.PathLike[str],
    speculation: Mapping[str, Any],
    prompts: Sequence[Prompt],
    max_tokens: int,
    engine_options: Mapping[str, Any],
) -> Acceptance:
    """Acceptance of drafts of `num_speculative_tokens` tokens in greedy answers to the prompts.

    All prompts are answered together. Raises what Engine raises.
    """
    config = {**speculation, "draft_length_policy": "fixed"}
    batch = len(prompts)
    directory = hub.resolve_model(os.fspath(model))
    runner = Runner(
        directory,
        [Method("drafts", config)],
        [Task(Workload("prompts", batch), [prompts])],
        max_tokens,
        with_small_cache(directory, batch, engine_options),
    )
    runner.run_in_turns()
    return acceptance_of(make_rows(runner.samples)[0])


def acceptance_of(row: Row) -> Acceptance:
    """Acceptance from a method's row, as shares of all steps, steps without drafts included."""
    decoded = row.num_tokens - row.num_prompts  # the first token comes with the prompt
    steps = decoded / row.tokens_per_step
    proposed = row.proposed_per_position or []
    kept = row.accepted_per_position or []
    if steps <= 0:
        return Acceptance((), ())
    return Acceptance(
        tuple(min(1.0, count / steps) for count in proposed),
        tuple(min(1.0, count / steps) for count in kept),
    )
