"""Weights of integers: quantised at load, or a GGUF file's own. What they cost is measured."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from transformers import AutoConfig

from gguf_of_transformers import gguf_metadata, gguf_tensors
from logprobs import Array, engine_logprobs, random_tokens, reference_logprobs
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub
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
# size, and there are five of them one after the other.
ACTIVATION_ERROR = 0.04
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


FAMILIES = [
    "llama", "llama_tied", "llama_biases", "qwen2", "qwen3", "mistral", "opt", "opt_untied",
    "opt_post_norm", "mixtral", "mixtral_stacked", "cohere2", "gpt_oss", "qwen2_moe", "apertus",
    "glm4_moe", "granite_swa", "hunyuan_dense", "gemma3n", "gemma4_effective", "gemma4_moe",
]  # fmt: skip
# Half as much again as was seen. Random weights, with as much in the last bits as in the first,
# lose far more than trained ones do.
FAMILY_ERRORS = {"int8": 0.055, "int4": 0.45}


def with_all_experts(model: Path, directory: Path) -> Path:
    """The model with every expert in use, if it has any: no rounding can change which ones are."""
    config = json.loads((model / "config.json").read_text())
    counts = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    count = next((config[key] for key in counts if config.get(key)), 0)
    if count == 0:
        return model
    names = ("moe_k", "top_k_experts", "num_experts_per_tok")
    per_token = next(name for name in names if name in config)
    config[per_token] = count
    if "n_group" in config:
        config["topk_group"] = config["n_group"]
    shutil.copytree(model, directory)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("variant", FAMILIES)
def test_families_quantised_at_load_stay_close(
    checkpoint: Checkpoint, variant: str, tmp_path: Path
) -> None:
    model = with_all_experts(checkpoint(variant), tmp_path / "model")
    tokens = random_tokens(100, seed=3)
    expected = reference_logprobs(model, tokens, token_by_token=False)[:-1]
    for quantization, limit in FAMILY_ERRORS.items():
        for dtype in ("float32", "bfloat16"):
            found = engine_logprobs(model, tokens, dtype=dtype, quantization=quantization)
            assert limit / 10 < relative_error(found, expected) < limit


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


def test_foreign_quantised_checkpoints_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "exl3", "bits": 4}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'exl3' are not read.*GGUF.*unquantised"):
        Engine(directory)


# -- real weights

TEXTS = (
    "A river begins as a thread of water between stones. It gathers what the hills let go, and by "
    "the time it reaches the plain it has forgotten how small it was. Boats use it, mills use it, "
    "and towns grow where it can be crossed. People give it a name, draw it on maps and quarrel "
    "about who may take its water, but the river itself only looks for the lowest place.",
    "def binary_search(items, wanted):\n    low, high = 0, len(items) - 1\n"
    "    while low <= high:\n        middle = (low + high) // 2\n"
    "        if items[middle] == wanted:\n            return middle\n"
    "        if items[middle] < wanted:\n            low = middle + 1\n"
    "        else:\n            high = middle - 1\n    return -1\n",
    "To change a bicycle tyre, first let the remaining air out and lift one side of the tyre over "
    "the rim with two levers. Pull out the tube, look for what made the hole, and run a finger "
    "along the inside of the tyre before the new tube goes in.",
    "The boiling point of water falls as the pressure of the air falls. On a mountain of 3,000 "
    "metres it is about 90 degrees Celsius, which is why potatoes take longer to cook there.",
)
# By what is asked for: how far the mean logprob of a text's tokens may fall or rise, and the mean
# of how far each one moves. Seen: -0.001 and 0.09 with int8; -0.23 and 0.63 with int4, most of it
# because the weights of this fixture were of 4 bits, with mins, once before.
REAL_LIMITS = {"int8": (0.02, 0.13), "int4": (0.45, 0.95)}


@pytest.fixture(scope="module")
def texts(smollm2: Path) -> list[list[int]]:
    tokenizer = Engine(smollm2, max_model_len=64).tokenizer
    return [tokenizer.encode(text) for text in TEXTS]


def text_logprobs(model: Path, texts: list[list[int]], **options: Any) -> Array:
    """Logprobs of each token of the texts except the first."""
    engine = Engine(model, max_model_len=256, skip_tokenizer_init=True, **options)
    outputs = engine.generate(texts, SamplingParams(max_tokens=1, prompt_logprobs=0))
    found = []
    for tokens, output in zip(texts, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for token, position in zip(tokens[1:], output.prompt_logprobs[1:], strict=True):
            assert position is not None
            found.append(position[token].logprob)
    return np.array(found)


@pytest.mark.models
@pytest.mark.parametrize("quantization", REAL_LIMITS)
def test_trained_weights_lose_little(
    smollm2: Path, texts: list[list[int]], quantization: str
) -> None:
    expected = text_logprobs(smollm2, texts, dtype="bfloat16")
    found = text_logprobs(smollm2, texts, dtype="bfloat16", quantization=quantization)
    of_mean, of_each = REAL_LIMITS[quantization]
    assert abs(np.mean(found - expected)) < of_mean
    assert of_each / 10 < np.mean(np.abs(found - expected)) < of_each


@pytest.fixture(scope="module")
def real_gguf(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a Q4_1 file, its embedding Q8_0."""
    config = AutoConfig.from_pretrained(smollm2)
    tensors = gguf_tensors(load_file(smollm2 / "model.safetensors"), config)
    kinds = {name: Type.Q4_1 for name, values in tensors.items() if values.ndim == 2}
    kinds["token_embd.weight"] = Type.Q8_0
    path = tmp_path_factory.mktemp("gguf") / "smollm2.gguf"
    return write_gguf(path, "llama", gguf_metadata(config), tensors, kinds)


@pytest.mark.models
def test_a_real_gguf_file_is_used_as_it_is(
    smollm2: Path, real_gguf: Path, texts: list[list[int]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path))
    exact = text_logprobs(real_gguf, texts, dtype="float32", quantization="none")
    found = text_logprobs(real_gguf, texts, dtype="bfloat16")
    assert abs(np.mean(found - exact)) < 0.02
    assert 1e-3 < np.mean(np.abs(found - exact)) < 0.09  # 0.055 was seen
    info = Engine(real_gguf, max_model_len=64, skip_tokenizer_init=True).model_info()
    assert info.weight_format == "int4+int8, from gguf q4_1+q8_0"
    # 5 bits a weight of the layers, 8.5 of the embedding.
    assert info.weight_bytes < 0.72 * info.num_parameters


@pytest.mark.models
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_models_still_make_sense(smollm2: Path, quantization: str) -> None:
    # The bfloat16 model is sure of these, by more than two nats.
    continuations = {"The opposite of hot is": " cold", "1, 2, 3, 4,": " 5"}
    engine = Engine(smollm2, max_model_len=256, quantization=quantization)
    outputs = engine.generate(
        list(continuations), SamplingParams(temperature=0, max_tokens=4), use_tqdm=False
    )
    for output, expected in zip(outputs, continuations.values(), strict=True):
        assert output.outputs[0].text.startswith(expected)
