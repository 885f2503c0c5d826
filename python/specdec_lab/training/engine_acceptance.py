"""How many drafted tokens the engine itself accepts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.training.batch import Example
from specdec_lab.training.predicted_acceptance import Acceptance, answers
from specdec_lab.training.target import read_config
from specdec_native.engine import Engine
from specdec_native.requests.inputs import TokensPrompt
from specdec_native.requests.sampling_params import SamplingParams

_SEQUENCES = 32  # at once, unless the engine's options say otherwise


@dataclasses.dataclass(frozen=True)
class EngineMeasurement:
    """An engine's measurement of a head.

    Attributes:
        acceptance: counted as in the trainer's prediction.
        num_answers: requests that were run.
        num_same_answers: requests whose answer has the tokens of the data.
    """

    acceptance: Acceptance
    num_answers: int
    num_same_answers: int


def measure_by_engine(
    model: Path,
    speculative: Mapping[str, Any],
    examples: Sequence[Example],
    depth: int,
    *,
    max_length: int,
    **engine_options: Any,
) -> EngineMeasurement:
    """Has the engine answer held-out prompts greedily, with drafts of `depth` tokens.

    Args:
        model: the target.
        speculative: the method and the head's directory, as in speculative_config.
        examples: examples with greedy answers.
        depth: tokens drafted in each step.
        max_length: tokens used of an example.
        engine_options: options such as the dtype that made the data.
    """
    prompts, params, wanted = [], [], []
    for example in examples:
        token_ids = example.token_ids[:max_length].tolist()
        for answer in answers(example.is_answer[:max_length]):
            prompts.append(TokensPrompt(prompt_token_ids=token_ids[: answer.start]))
            wanted.append(token_ids[answer.start : answer.end])
            length = answer.end - answer.start
            params.append(
                SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            )
    config = {
        **speculative,
        "num_speculative_tokens": depth,
        "draft_length_policy": "fixed",
        "quantization": "none",
    }
    longest = min(max(len(e.token_ids) for e in examples), max_length) + depth + 1
    positions = read_config(model).get("max_position_embeddings")
    options = {
        "max_num_seqs": min(len(prompts), _SEQUENCES),
        **engine_options,
        "max_model_len": min(longest, positions) if isinstance(positions, int) else longest,
        "speculative_config": config,
    }
    with Engine(model, **options) as engine:
        outputs = [output.outputs[0] for output in engine.generate(prompts, params)]
    metrics = [m for output in outputs if (m := output.speculative_decoding) is not None]
    return EngineMeasurement(
        Acceptance(
            [sum(m.proposed_per_position[d] for m in metrics) for d in range(depth)],
            [sum(m.accepted_per_position[d] for m in metrics) for d in range(depth)],
        ),
        len(outputs),
        sum(list(o.token_ids) == w for o, w in zip(outputs, wanted, strict=True)),
    )
