"""Ranks that read their shares of files, in every way that matrices are stored."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from make_checkpoints import SHARED
from make_fp8 import KINDS, make_fp8
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from rank_models import CONFIG, MIXES, answers_of
from specdec_native import Engine

STORED: dict[str, Any] = {"load_format": "auto"}
VOCABULARY = 32  # of the smallest model here
SPECULATION: dict[str, Any] = {
    "num_speculative_tokens": 3,
    "method": "draft_model",
    "draft_length_policy": "fixed",
}


def write_checkpoint(directory: Path, **changes: Any) -> Path:
    """A Llama of random numbers, in bfloat16."""
    config: dict[str, Any] = CONFIG | {"num_hidden_layers": 2, "vocab_size": 96} | changes
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config["vocab_size"], hidden),
        "model.norm": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + name: (hidden,) for name in ("input_layernorm", "post_attention_layernorm")
        }
        shapes |= {
            prefix + f"self_attn.{name}_proj": (rows, hidden)
            for name, rows in (("q", q), ("k", kv), ("v", kv))
        }
        shapes |= {prefix + f"mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        shapes[prefix + "self_attn.o_proj"] = (hidden, q)
        shapes[prefix + "mlp.down_proj"] = (hidden, inner)
    random = torch.Generator().manual_seed(5)
    directory.mkdir()
    save_file(
        {
            name + ".weight": (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()
            for name, shape in shapes.items()
        },
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def assert_ranks_agree(model: Path, sizes: list[tuple[int, int]], **options: Any) -> None:
    whole = answers_of(model, vocabulary=VOCABULARY, **STORED, **options)
    for number, (ranks, stages) in enumerate(sizes):
        draft = SPECULATION | {"model": str(model), "draft_tensor_parallel_size": ranks}
        answers = answers_of(
            model,
            vocabulary=VOCABULARY,
            tensor_parallel_size=ranks,
            pipeline_parallel_size=stages,
            **({"speculative_config": draft} if number % 2 else {}),
            **MIXES[number % len(MIXES)],
            **STORED,
            **options,
        )
        assert answers == whole, (ranks, stages)


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"quantization": "int8"}])
@pytest.mark.parametrize("tied", [True, False])
def test_floats(tmp_path: Path, options: dict[str, str], tied: bool) -> None:
    model = write_checkpoint(tmp_path / "model", tie_word_embeddings=tied)
    assert_ranks_agree(model, [(2, 1), (3, 2), (4, 1)], **options)


@pytest.mark.parametrize("variant", SHARED)
def test_what_newer_families_add(checkpoint: Callable[[str], Path], variant: str) -> None:
    """Sinks, biases of experts, MLPs beside experts, heads by layer, and rows in another order."""
    shares_kv = variant.startswith(("gemma3n", "gemma4_effective"))
    stages = 1 if shares_kv else 2  # later layers read what earlier ones computed
    assert_ranks_agree(checkpoint(variant), [(2, 1), (2, stages)], dtype="float32")


def test_stages_with_shared_keys_and_values_are_refused(
    checkpoint: Callable[[str], Path],
) -> None:
    options: dict[str, Any] = {"pipeline_parallel_size": 2, "max_model_len": 64}
    with pytest.raises(ValueError, match=r"pipeline_parallel_size: .* write 1"):
        Engine(checkpoint("gemma4_effective"), **options)


def test_nine_heads_on_three_ranks(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    model = write_checkpoint(tmp_path / "model", **heads, intermediate_size=1536)
    assert_ranks_agree(model, [(3, 1), (3, 2)])


@pytest.mark.parametrize("kind", ["blocks", "channels", "static"])
def test_eight_bit_floats(tmp_path: Path, kind: str) -> None:
    source = write_checkpoint(tmp_path / "source")
    model, _ = make_fp8(source, KINDS[kind], tmp_path)
    assert_ranks_agree(model, [(2, 1), (4, 2)])


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q5_1, Type.Q4_0, Type.Q4_1])
def test_gguf_and_stored_integers(tmp_path: Path, kind: Type) -> None:
    """8 and 4 bits, with mins and without; such files become checkpoints with their integers."""
    tensors = llama_tensors()
    kinds = {name: kind for name, values in tensors.items() if values.ndim == 2}
    model = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    assert_ranks_agree(model, [(2, 1), (4, 1)])
