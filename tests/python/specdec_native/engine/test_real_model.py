"""SmolLM2-135M-Instruct and gemma-3-270m against transformers, on the same files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub

pytestmark = pytest.mark.models

FIXED_TEXT = (
    "A river begins as a thread of water between stones. It gathers what the hills let go, and by "
    "the time it reaches the plain it has forgotten how small it was. Boats use it, mills use it, "
    "and towns grow where it can be crossed. In spring it is brown and loud; in summer children "
    "stand in it up to their knees. People give it a name, draw it on maps and quarrel about who "
    "may take its water, but the river itself only looks for the lowest place, and finds it."
)


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    return loaded.eval()


def chat_tokens(engine: Engine, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    text = engine.tokenizer.render_chat(messages)
    return engine.tokenizer.encode(text, add_special_tokens=False)


def test_greedy_tokens_equal_transformers_in_float32(
    smollm2: Path, prompts: list[str], reference: Any
) -> None:
    assert len(prompts) >= 20
    engine = Engine(smollm2, dtype="float32", max_model_len=2048)
    token_prompts = [chat_tokens(engine, prompt)[-1500:] for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    outputs = engine.generate(token_prompts, params)
    for prompt, output in zip(token_prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        assert len(tokens) == 64
        # By induction over the prefix this is greedy decoding, in one pass.
        with torch.no_grad():
            rows = reference(torch.tensor([prompt + tokens]), logits_to_keep=len(tokens) + 1)
        assert rows.logits[0, :-1].argmax(-1).tolist() == tokens


def test_bfloat16_logprobs_stay_close_to_float32(smollm2: Path, reference: Any) -> None:
    engine = Engine(smollm2, dtype="bfloat16", max_model_len=1024)
    tokens = engine.tokenizer.encode(FIXED_TEXT)
    output = engine.generate(
        [tokens], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    )[0]
    assert output.prompt_logprobs is not None
    ours = [
        position[token].logprob
        for token, position in zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
        if position is not None
    ]
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    theirs = [logits[i, token].item() for i, token in enumerate(tokens[1:])]
    assert len(ours) == len(theirs)
    assert abs(np.mean(ours) - np.mean(theirs)) < 1e-2


@pytest.fixture(scope="module")
def gemma3() -> Path:
    return hub.fetch("gemma-3-270m", source="registry")


def test_gemma3_greedy_tokens_equal_transformers_in_float32(gemma3: Path) -> None:
    """Of prompts that end before its windows do, and beyond them."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(gemma3, dtype=torch.float32)
    reference = loaded.eval()
    with Engine(gemma3, dtype="float32", max_model_len=1024) as engine:
        text = engine.tokenizer.encode(FIXED_TEXT)
        prompts = [engine.tokenizer.encode("The capital of France is"), text, text * 6]
        assert len(prompts[-1]) > 512 + 64
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        outputs = engine.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        with torch.no_grad():
            rows = reference(torch.tensor([prompt + tokens]), logits_to_keep=len(tokens) + 1)
        assert rows.logits[0, :-1].argmax(-1).tolist() == tokens
