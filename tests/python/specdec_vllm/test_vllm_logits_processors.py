"""Logits processors written as vLLM's classes: each row is a batch of one, with drafts, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import specdec_native
from specdec_native import LLM, SamplingParams
from specdec_native.requests.batch_logits_processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    process_dict_updates,
    processor_classes,
)
from tiny_text_model import FIRST_CHAR, OPTIONS, text_params, texts

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "draft_length_policy": "fixed"}


class OnlyTarget(LogitsProcessor):
    """Allows one token in requests that name it, and writes its state as one would for vLLM."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.max_model_len == OPTIONS["max_model_len"]
        assert device.type == "cpu" and not is_pin_memory
        self.targets: dict[int, int] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if not isinstance((sampling_params.extra_args or {}).get("target", 0), int):
            raise ValueError("target must be an integer")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row, params, _, _ in batch_update.added:
            if params.extra_args:
                self.targets[row] = params.extra_args["target"]
        for row in batch_update.removed:
            self.targets.pop(row, None)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        assert logits.shape[0] == 1 and logits.dtype == torch.float32
        for row, target in self.targets.items():
            kept = logits[row, target].clone()
            logits[row] = -torch.inf
            logits[row, target] = kept
        return logits


def lift(prompt: list[int], output: list[int], logits: Any) -> Any:
    """Depends on every token of prompt and output."""
    logits[FIRST_CHAR + (sum(prompt) + 7 * sum(output) + 3 * len(output)) % 90] += 5.0
    return logits


class Lift(AdapterLogitsProcessor):
    """lift() for requests that ask for it."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        return lift if params.extra_args else None


class NearTheBest(LogitsProcessor):
    """Forbids tokens whose logit is more than 1 below the best."""

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        best = logits.amax(dim=1, keepdim=True)
        return logits.masked_fill(logits < best - 1.0, -torch.inf)


def near_the_best(output: list[int], logits: Any) -> Any:
    """The same for a temperature of 0.5."""
    logits[logits < logits.max() - 0.5] = -np.inf
    return logits


def test_scripts_import_them_from_the_package() -> None:
    for own in (AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, process_dict_updates):
        assert getattr(specdec_native, own.__name__) is own


def answers(llm: LLM, **options: Any) -> list[str]:
    plain, asking = text_params(**options), text_params(**options, extra_args={"target": 40})
    return texts(llm.generate(["abcabcabc", "abcabcabc", "xyz"], [asking, plain, asking]))


@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "drafts"])
def test_a_class_changes_the_requests_that_ask_for_it(
    model: Path, llm: LLM, drafts: dict[str, Any] | None
) -> None:
    given = LLM(model, **OPTIONS, logits_processors=[OnlyTarget], speculative_config=drafts)
    target = llm.get_tokenizer().decode(40)
    only, plain, also = answers(given)
    assert only == also == target * 24
    assert plain == answers(llm)[1]
    with pytest.raises(ValueError, match="target must be an integer"):
        given.generate("abc", SamplingParams(extra_args={"target": "x"}))
    if drafts:
        counts = given.engine.stats().speculative_decoding
        assert counts is not None and counts.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "drafts"])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "n": 2}], ids=repr)
def test_an_adapter_is_its_function(
    model: Path, llm: LLM, drafts: dict[str, Any] | None, options: dict[str, Any]
) -> None:
    name = f"{__name__}:Lift"
    given = LLM(model, **OPTIONS, logits_processors=[name], speculative_config=drafts)
    lifted, plain, _ = answers(given, **options)
    assert plain == answers(llm, **options)[1] != lifted
    params = text_params(**options, logits_processors=[lift])
    assert lifted == texts(llm.generate("abcabcabc", params))[0]


def test_what_keeps_the_best_token_comes_after_the_temperature(model: Path, llm: LLM) -> None:
    given = LLM(model, **OPTIONS, logits_processors=[NearTheBest])
    warm = text_params(temperature=0.5)
    expected = text_params(temperature=0.5, logits_processors=[near_the_best])
    assert texts(given.generate("abc", warm)) == texts(llm.generate("abc", expected))
    assert texts(given.generate("abc", warm)) != texts(llm.generate("abc", warm))
    greedy = text_params(temperature=0)
    assert given.generate("abc", greedy)[0].outputs == llm.generate("abc", greedy)[0].outputs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("m:C", "must be a list of classes"),
        ([lift], r"update_state\(\) and apply\(\).*SamplingParams\(logits_processors"),
        ([dict], r"update_state\(\) and apply\(\)"),
        (["json.dumps"], 'no "module:Class"'),
    ],
)
def test_what_is_no_class_of_processors_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processor_classes(given)


def test_states_follow_their_rows() -> None:
    states: dict[int, Any] = {}

    def update(**changes: Any) -> bool:
        update = BatchUpdate(4, **({"removed": [], "added": [], "moved": []} | changes))
        return process_dict_updates(states, update, lambda params, _, output: params and output)

    assert not process_dict_updates(states, None, lambda *_: 1)
    assert update(added=[(0, True, None, [1]), (1, None, None, [2]), (2, True, None, [3])])
    assert states == {0: [1], 2: [3]}
    assert update(moved=[(0, 2, MoveDirectionality.SWAP)]) and states == {0: [3], 2: [1]}
    assert update(moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]) and states == {0: [1]}
    assert not update(removed=[1])
    assert update(removed=[0], added=[(1, True, None, [5])]) and states == {1: [5]}
    assert update(added=[(1, None, None, [6])]) and states == {}
