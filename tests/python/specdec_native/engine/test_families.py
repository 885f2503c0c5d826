"""Every family, rope scaling and checkpoint layout against transformers in float32."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logprobs import engine_logprobs, load_reference, random_tokens, reference_logprobs
from make_checkpoints import MAX_POSITIONS, VARIANTS, VOCAB_SIZE
from specdec_native import Engine, SamplingParams
from test_speculation_law import Setting, check, speculative

Checkpoint = Callable[[str], Path]

NUM_STEPS = 64
# Past every window and past every original context length of the rope scalings: longrope's prompts
# are, too, since transformers chooses its factors anew for every step.
NUM_TOKENS = {"llama_dynamic": MAX_POSITIONS + 44, "phi3_longrope": 150}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_of_the_whole_vocabulary_agree(checkpoint: Checkpoint, variant: str) -> None:
    model = checkpoint(variant)
    tokens = random_tokens(NUM_TOKENS.get(variant, 120), seed=1)
    # Dynamic scaling depends on the length so far, which only token by token is the position's own.
    expected = reference_logprobs(model, tokens, token_by_token=variant == "llama_dynamic")[:-1]
    found = engine_logprobs(model, tokens, dtype="float32", max_num_batched_tokens=64)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


# Networks of files that transformers reads with their own code, or that have other keys on the hub:
# each computes what a variant does. None takes a key out.
OTHER_SPELLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "MiMo": (
        "qwen2",
        {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True},
    ),
    "InternLM3": (
        "llama_biases",
        {
            **{"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3"},
            **{"attention_bias": None, "mlp_bias": None, "qkv_bias": True, "bias": True},
        },
    ),
    "MiniCPM": (
        "minicpm",
        {
            **{"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm"},
            **{"scale_emb": 1.7, "scale_depth": 0.6 * 3**0.5, "dim_model_base": 64 / 1.4},
            **{"embedding_multiplier": None, "residual_multiplier": None},
            **{"attention_multiplier": None, "logits_scaling": None},
        },
    ),
    "ERNIE": ("ernie4_5", {"architectures": ["Ernie4_5_ForCausalLM"]}),
    "EXAONE pattern": ("exaone4", {"layer_types": None, "sliding_window_pattern": "LLLG"}),
    "Command R7B": (
        "cohere2",
        {
            **{"layer_types": None, "layer_switch": 4, "position_embedding_type": "rope_gptj"},
            **{"use_parallel_block": True, "use_gated_activation": True, "rotary_pct": 1.0},
            "order_of_interleaved_layers": "local_attn_first",
        },
    ),
    "Granite 4": (
        "granite_hybrid_dense",
        {"layer_types": None, "layers_block_type": ["attention"] * 3},
    ),
    "Granite 4-H": (
        "granite_mamba",
        {
            **{"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_d_head": "auto"},
            **{"time_step_limit": None, "normalization_function": "rmsnorm"},
        },
    ),
    "LFM2": (
        "lfm2",
        {
            **{"layer_types": None, "full_attn_idxs": [1], "conv_dim": 64, "conv_dim_out": 64},
            **{"block_ff_dim": 96, "intermediate_size": 90, "block_use_swiglu": True},
            **{"tie_embedding": False, "tie_word_embeddings": True, "num_heads": 4},
            **{"rope_parameters": None, "rope_theta": 1e6, "use_pos_enc": True, "block_dim": 64},
        },
    ),
    "Qwen3-Next": (
        "qwen3_next",
        {
            **{"rope_parameters": None, "rope_theta": 10000, "partial_rotary_factor": 0.25},
            **{"rope_scaling": None, "full_attention_interval": 4, "mtp_num_hidden_layers": 1},
            **{"attn_output_gate": True, "output_gate_type": "swish"},
        },
    ),
    "gpt-oss": ("gpt_oss", {"experts_per_token": 3, "initial_context_length": 4096}),
}


@pytest.mark.parametrize("name", OTHER_SPELLINGS)
def test_other_spellings_of_a_network(checkpoint: Checkpoint, name: str, tmp_path: Path) -> None:
    variant, changes = OTHER_SPELLINGS[name]
    original = checkpoint(variant)
    model = shutil.copytree(original, tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (model / "config.json").write_text(json.dumps(config))
    tokens = random_tokens(100, seed=1)
    expected = reference_logprobs(original, tokens, token_by_token=False)[:-1]
    found = engine_logprobs(model, tokens, dtype="float32")
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_equal(checkpoint: Checkpoint, variant: str) -> None:
    model = checkpoint(variant)
    prompt = random_tokens(NUM_TOKENS.get(variant, 124) - NUM_STEPS // 2 - 44, seed=2)
    reference = load_reference(model)
    expected: list[int] = []
    ids, cache = torch.tensor([prompt]), None
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            output = reference(ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            ids = output.logits[:, -1:].argmax(-1)
            expected.append(int(ids))
    engine = Engine(model, dtype="float32", max_model_len=len(prompt) + NUM_STEPS)
    params = SamplingParams(temperature=0, max_tokens=NUM_STEPS, ignore_eos=True)
    assert list(engine.generate([prompt], params)[0].outputs[0].token_ids) == expected


# Families with experts are left out: rounding moves tokens between experts whose router logits are
# close, and in a tiny random model that changes everything.
@pytest.mark.parametrize(
    "variant",
    [
        "llama_bfloat16", "mistral", "qwen2", "qwen3", "opt", "opt_post_norm", "gemma2", "gemma3",
        "phi3_longrope", "granite", "olmo2", "gpt_neox", "smollm3", "exaone4", "cohere2", "glm4",
        "nemotron", "apertus", "hunyuan_dense", "hyperclovax", "ministral3", "granite_swa",
        "gemma3n", "gemma4_effective", "lfm2", "qwen3_5", "granite_mamba",
    ],
)  # fmt: skip
def test_bfloat16_stays_close_to_float32(checkpoint: Checkpoint, variant: str) -> None:
    model = checkpoint(variant)
    tokens = random_tokens(100, seed=3)
    expected = reference_logprobs(model, tokens, token_by_token=False)[:-1]
    found = engine_logprobs(model, tokens, dtype="bfloat16")
    difference = np.abs(found - expected)
    assert 1e-4 < difference.mean() < 0.03  # it is bfloat16, and no more than that


@pytest.mark.parametrize(
    "variant",
    ["llama", "llama_tied", "opt_post_norm", "mixtral", "gemma3", "phi3", "olmo2", "gpt_neox",
     "qwen3_moe_dense_layers", "gpt_oss", "qwen2_moe", "cohere2", "gemma3n", "gemma4",
     "gemma4_effective", "gemma4_moe", "lfm2_moe", "qwen3_5_moe", "granite_mamba_moe"],
)  # fmt: skip
def test_parameters_are_counted_once(checkpoint: Checkpoint, variant: str) -> None:
    model = checkpoint(variant)
    info = Engine(model, dtype="float32", max_model_len=64).model_info()
    reference = load_reference(model)
    stored = reference.state_dict()
    buffers = [buffer for name, buffer in reference.named_buffers() if name in stored]
    assert info.num_parameters == reference.num_parameters() + sum(b.numel() for b in buffers)
    assert info.weight_bytes >= 4 * info.num_parameters


@pytest.mark.parametrize("sampling", ["greedy", "t1"])
@pytest.mark.parametrize(
    "variant",
    [
        "gemma2", "gemma3", "phi3_longrope", "qwen3_moe", "granite", "olmo2", "gpt_neox",
        "cohere2", "gpt_oss", "glm4_moe", "qwen2_moe", "hunyuan_dense", "apertus", "ministral3",
        "exaone4", "granite_swa", "gemma3n", "gemma4_effective", "gemma4_moe",
    ],
)  # fmt: skip
def test_speculation_changes_no_answer(checkpoint: Checkpoint, variant: str, sampling: str) -> None:
    setting = Setting(checkpoint(variant), VOCAB_SIZE, "float32", 40)
    check(setting, sampling, speculative("merged", setting.model, 4, 2)).close()


@pytest.mark.parametrize("sampling", ["greedy", "t1"])
@pytest.mark.parametrize(
    "variant",
    ["lfm2", "lfm2_moe", "qwen3_next", "qwen3_5", "granite_mamba", "granite_mamba_moe"],
)
def test_speculation_changes_no_answer_of_recurrent_models(
    checkpoint: Checkpoint, variant: str, sampling: str
) -> None:
    """Which do not draft themselves."""
    setting = Setting(checkpoint(variant), VOCAB_SIZE, "float32", 40)
    config = speculative("merged", checkpoint("llama"), 4, 2)
    with check(setting, sampling, config) as engine:
        metrics = engine.stats().speculative_decoding
        assert metrics is not None and metrics.num_accepted_draft_tokens > 0
