"""Drafters written to vLLM's interface, and its keys of a draft model."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_native import LLM
from tiny_text_model import OPTIONS, PARAMS, texts

PROPOSERS = '''
import numpy

class Repeat:
    """Drafts the answer it is given, and keeps what it was called with."""

    answer = []
    calls = []

    def __init__(self, vllm_config):
        self.tokens = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        assert vllm_config.speculative_config.parallel_drafting is None
        Repeat.made = vllm_config

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        assert slot_mappings is None and token_ids_cpu.shape == (1, self.max_model_len)
        drafts = []
        for row, sampled in enumerate(sampled_token_ids):
            known = token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()
            assert known[-len(sampled):] == sampled
            Repeat.calls.append(known)
            drafts.append(Repeat.answer[len(known):][: self.tokens])
        return drafts


class Optional(Repeat):
    def __init__(self, vllm_config=None):
        super().__init__(vllm_config)


class TwoDrafts(Repeat):
    def propose(self, *_, **__):
        return [[1], [2]]


class Array(Repeat):
    def propose(self, *arguments, **options):
        return numpy.array([super().propose(*arguments, **options)[0] or [3]])


class Ours:
    def __init__(self, width=1):
        self.width = width

    def propose(self, tokens, max_tokens):
        return Repeat.answer[len(tokens):][: max_tokens]


class NeedsMore:
    def __init__(self, a, b):
        pass

    def propose(self, tokens, max_tokens):
        return []
'''


@pytest.fixture
def proposers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_proposers.py").write_text(PROPOSERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_proposers")
    del sys.modules["my_proposers"]


def speculating(model: Path, name: str) -> LLM:
    config = {"model": f"my_proposers.{name}", "num_speculative_tokens": 4}
    return LLM(model, **OPTIONS, speculative_config={**config, "draft_length_policy": "fixed"})


@pytest.mark.parametrize("name", ["Repeat", "Optional", "Array", "Ours"])
def test_a_proposer_of_vllms_drafts(proposers: Any, model: Path, llm: LLM, name: str) -> None:
    expected = llm.generate("abc", PARAMS)[0]
    prompt = expected.prompt_token_ids or []
    answer = list(expected.outputs[0].token_ids)
    proposers.Repeat.answer = prompt + answer
    found = speculating(model, name).generate("abc", PARAMS)[0]
    assert found.outputs[0] == expected.outputs[0]
    metrics = found.outputs[0].speculative_decoding
    assert metrics is not None
    # 20 tokens: one of the prompt's pass, three steps of four drafts and one, one of three and one.
    assert (metrics.num_spec_steps, metrics.num_accepted_draft_tokens) == (4, 15)
    if name != "Ours":
        whole = prompt + answer
        assert proposers.Repeat.calls[0] == whole[: len(prompt) + 1]
        assert all(call == whole[: len(call)] for call in proposers.Repeat.calls)
        assert proposers.Repeat.made.model_config.max_model_len == 96


def test_requests_of_a_batch_do_not_mix_in_a_proposer(
    proposers: Any, model: Path, llm: LLM
) -> None:
    prompts = ["abc", "a longer one", "x"]
    proposers.Repeat.answer = [5] * 96
    assert texts(speculating(model, "Repeat").generate(prompts, PARAMS)) == texts(
        llm.generate(prompts, PARAMS)
    )


def test_a_proposer_that_is_wrong_says_so(proposers: Any, model: Path) -> None:
    with pytest.raises(RuntimeError, match="TwoDrafts must return.*each of the requests"):
        speculating(model, "TwoDrafts").generate("abc", PARAMS)
    with pytest.raises(TypeError, match="NeedsMore"):
        speculating(model, "NeedsMore")


@pytest.mark.parametrize("draft_model", [False, True])
def test_a_draft_may_have_a_length_of_its_own(model: Path, llm: LLM, draft_model: bool) -> None:
    drafter = {"model": str(model), "quantization": "none"} if draft_model else {"method": "ngram"}
    config = {**drafter, "num_speculative_tokens": 3, "draft_length_policy": "fixed"}
    expected = llm.generate([7] * 20, PARAMS)[0].outputs[0]
    drafts = {}
    for length in (None, 96, 30):
        given = LLM(model, **OPTIONS, speculative_config={**config, "max_model_len": length})
        output = given.generate([7] * 20, PARAMS)[0].outputs[0]
        assert output == expected
        assert output.speculative_decoding is not None
        drafts[length] = output.speculative_decoding.num_draft_tokens
    assert drafts[None] == drafts[96] > 0
    assert (drafts[30] < drafts[96]) == draft_model
