"""Weights of integers: quantised at load, or a GGUF file's own. What they cost is measured."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from logprobs import Array, engine_logprobs, random_tokens, reference_logprobs
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native import LLM, Engine, hub
from specdec_native.checkpoints.gguf_convert import convert_gguf

Checkpoint = Callable[[str], Path]

GGUF_TYPES = [
    Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K, Type.Q6_K
]  # fmt: skip
NUM_TOKENS = 48


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A cache of converted checkpoints of its own, except where real weights are fetched."""
    if request.node.get_closest_marker("models") is None:
        monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))


def write_model(path: Path, kinds: dict[str, Type]) -> Path:
    """A one-layer Llama whose matrices keep the size of what they multiply."""
    tensors = {
        name: values * values.shape[1] ** -0.5
        if values.ndim == 2 and name != "token_embd.weight"
        else values
        for name, values in llama_tensors().items()
    }
    return write_gguf(path, "llama", LLAMA_METADATA, tensors, kinds)


def all_matrices(kind: Type) -> dict[str, Type]:
    return {name: kind for name, values in llama_tensors().items() if values.ndim == 2}


def tokens_below(limit: int) -> list[int]:
    return [token % (limit - 3) + 3 for token in random_tokens(NUM_TOKENS, seed=4)]


def reference_of(source: Path, tokens: list[int]) -> Array:
    """Transformers in float32 on what the gguf package makes of the file."""
    directory = source.with_suffix("")
    directory.mkdir()
    convert_gguf(source, directory, dtype="float32")
    return reference_logprobs(directory, tokens, token_by_token=False)[:-1]


def relative_error(found: Array, expected: Array) -> float:
    """Root mean square, over the spread of what is expected at a position."""
    spread = expected - expected.mean(axis=1, keepdims=True)
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(spread**2)))


# Rounding a row's inputs to 8 bits in groups of 32 moves a product by about half a percent of its
# size, and a layer has five of them one after the other.
ACTIVATION_ERROR = 0.02
# What float16 scales and, for Q6_K, eight bits anew change; nothing for the others.
WEIGHT_ERRORS = {Type.Q4_K: 2e-3, Type.Q5_K: 2e-3, Type.Q6_K: 2e-2}


@pytest.mark.parametrize("kind", GGUF_TYPES, ids=lambda kind: kind.name)
def test_a_gguf_file_computes_with_its_own_integers(kind: Type, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", all_matrices(kind))
    tokens = tokens_below(32)
    expected = reference_of(source, tokens)
    directory = hub.resolve_model(source)

    # The same integers, dequantised at load: no inputs are rounded.
    exact = engine_logprobs(directory, tokens, dtype="float32", quantization="none")
    assert relative_error(exact, expected) <= WEIGHT_ERRORS.get(kind, 2e-5)

    found = engine_logprobs(source, tokens, dtype="float32")
    assert 1e-4 < relative_error(found, exact) < ACTIVATION_ERROR
    info = Engine(source, max_model_len=64).model_info()
    bits = "int4" if kind.name.startswith("Q4") else "int8"
    assert info.weight_format == f"{bits}, from gguf {kind.name.lower()}"


def test_parts_of_several_types_are_fused_without_loss(tmp_path: Path) -> None:
    kinds = all_matrices(Type.Q4_0) | {
        "blk.0.attn_k.weight": Type.Q4_1, "blk.0.attn_v.weight": Type.Q8_0,
        "blk.0.ffn_up.weight": Type.Q4_1, "blk.0.ffn_down.weight": Type.Q5_1,
    }  # fmt: skip
    source = write_model(tmp_path / "model.gguf", kinds)
    tokens = tokens_below(32)
    found = engine_logprobs(source, tokens, dtype="float32")
    assert relative_error(found, reference_of(source, tokens)) < ACTIVATION_ERROR


def test_a_part_in_floating_point_keeps_the_whole_so(tmp_path: Path) -> None:
    kinds = all_matrices(Type.F32) | {"blk.0.attn_v.weight": Type.Q4_1}
    source = write_model(tmp_path / "model.gguf", kinds)
    tokens = tokens_below(32)
    found = engine_logprobs(source, tokens, dtype="float32")
    assert relative_error(found, reference_of(source, tokens)) < 2e-5


def test_none_makes_floating_point_of_a_gguf_file(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", all_matrices(Type.Q4_K))
    tokens = tokens_below(32)
    found = engine_logprobs(source, tokens, dtype="float32", quantization="none")
    assert relative_error(found, reference_of(source, tokens)) < 2e-5
    info = Engine(source, max_model_len=64, quantization="none").model_info()
    assert (info.dtype, info.weight_format) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("stored", "quantization", "weight_format"),
    [
        (Type.Q4_1, "int8", "int4, from gguf q4_1"),  # no wider than they are
        (Type.Q8_0, "int8", "int8, from gguf q8_0"),
        (Type.Q8_0, "int4", "int4+int8, from gguf q8_0"),
        (Type.F16, "int4", "int4+int8"),
        (Type.F16, "int8", "int8"),
    ],
)
def test_stored_integers_are_narrowed_but_never_widened(
    stored: Type, quantization: str, weight_format: str, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "model.gguf", all_matrices(stored))
    info = Engine(source, max_model_len=64, quantization=quantization).model_info()
    assert info.weight_format == weight_format


# The largest mean difference of a logprob from float32 that was seen, with half as much again.
FAMILIES = {
    "llama": (0.03, 0.3),
    "llama_tied": (0.03, 0.3),
    "llama_biases": (0.03, 0.3),
    "qwen2": (0.03, 0.3),
    "qwen3": (0.03, 0.3),
    "mistral": (0.03, 0.3),
    "opt": (0.03, 0.3),
    "opt_untied": (0.03, 0.3),
    "opt_post_norm": (0.03, 0.3),
    "mixtral": (0.03, 0.3),
    "mixtral_stacked": (0.03, 0.3),
}


def with_all_experts(model: Path, directory: Path) -> Path:
    """The model with every expert in use: no rounding can change which ones are."""
    shutil.copytree(model, directory)
    config = json.loads((directory / "config.json").read_text())
    config["num_experts_per_tok"] = config["num_local_experts"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("variant", FAMILIES)
def test_families_quantised_at_load_stay_close(
    checkpoint: Checkpoint, variant: str, tmp_path: Path
) -> None:
    model = checkpoint(variant)
    if variant.startswith("mixtral"):
        model = with_all_experts(model, tmp_path / "model")
    tokens = random_tokens(100, seed=3)
    expected = reference_logprobs(model, tokens, token_by_token=False)[:-1]
    for quantization, limit in zip(("int8", "int4"), FAMILIES[variant], strict=True):
        found = engine_logprobs(model, tokens, dtype="float32", quantization=quantization)
        assert 1e-4 < np.abs(found - expected).mean() < limit


def test_models_get_smaller(checkpoint: Checkpoint) -> None:
    sizes = {}
    for quantization in ("auto", "none", "int8", "int4"):
        engine = Engine(checkpoint("llama"), dtype="bfloat16", quantization=quantization)
        info = engine.model_info()
        sizes[quantization] = info.weight_bytes
        assert info.num_parameters == Engine(checkpoint("llama")).model_info().num_parameters
    assert sizes["auto"] == sizes["none"] > sizes["int8"] > sizes["int4"]


def test_a_draft_model_is_eight_bits_unless_told_otherwise(checkpoint: Checkpoint) -> None:
    model = checkpoint("llama")
    plain = Engine(model, dtype="bfloat16").model_info().weight_bytes
    sizes = {
        quantization: Engine(model, dtype="bfloat16", quantization=quantization)
        .model_info()
        .weight_bytes
        for quantization in ("none", "int8", "int4")
    }
    for asked, used in ((None, "int8"), ("none", "none"), ("int4", "int4"), ("auto", "none")):
        config = {"model": str(model), "num_speculative_tokens": 3, "quantization": asked}
        info = Engine(model, dtype="bfloat16", speculative_config=config).model_info()
        assert info.weight_format == "bfloat16"
        assert info.weight_bytes == plain + sizes[used]


def test_llm_takes_the_argument(checkpoint: Checkpoint) -> None:
    options: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 64}
    for quantization, expected in (("int8", "int8"), (None, "float32")):
        llm = LLM(checkpoint("llama"), quantization=quantization, **options)
        assert llm.llm_engine.model_info().weight_format == expected


def test_foreign_quantised_checkpoints_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'gptq' are not read.*unquantized.*GGUF"):
        Engine(directory)
