"""Checkpoints of real shapes with random weights, written where they are measured."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": _ROPE,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
_LLAMA_1B: dict[str, Any] = _LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
_TINY: dict[str, Any] = _LLAMA | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rope_scaling": None,
    "tie_word_embeddings": True,
}


def _eagle3_head(target: dict[str, Any], draft_vocab_size: int, taps: list[int]) -> dict[str, Any]:
    """An EAGLE-3 head: a layer over the inputs of three layers of the target."""
    return target | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": taps,
        "tie_word_embeddings": False,
    }


_LLAMA_8B: dict[str, Any] = _LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_scaling": _ROPE | {"factor": 8.0},
    "tie_word_embeddings": False,
}
# config.json by name of the shape.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA_1B,
    "llama-3.1-8b": _LLAMA_8B,
    # A draft as cheap as an EAGLE head: one layer of the 1B and its vocabulary.
    "llama-one-layer": _LLAMA_1B | {"num_hidden_layers": 1},
    "tiny": _TINY,
    "tiny-draft": _TINY | {"num_hidden_layers": 1},
    "llama-3.2-1b-eagle3": _eagle3_head(_LLAMA_1B, 32000, [2, 8, 13]),
    "llama-3.1-8b-eagle3": _eagle3_head(_LLAMA_8B, 32000, [2, 16, 29]),
    "tiny-eagle3": _eagle3_head(_TINY, 64, [0, 1, 2]),
}

_BLOCK_WEIGHTS = 1 << 25  # random numbers drawn; larger tensors repeat them
_SHARD_BYTES = 1 << 30


_DRAFT_TOKENS = "d2t"  # of a head: how far each of its tokens lies behind its id in the target


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of a Llama checkpoint, or of a head for one."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    is_head = "draft_vocab_size" in config
    if is_head:
        num_taps = len(config["eagle_aux_hidden_state_layer_ids"])
        yield _DRAFT_TOKENS, (config["draft_vocab_size"],)
        yield "fc.weight", (hidden, num_taps * hidden)
        yield "midlayer.hidden_norm.weight", (hidden,)
    else:
        yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = "midlayer." if is_head else f"model.layers.{i}."
        attended = 2 * hidden if is_head else hidden
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_proj.weight", (queries, attended)
        yield layer + "self_attn.k_proj.weight", (keys, attended)
        yield layer + "self_attn.v_proj.weight", (keys, attended)
        yield layer + "self_attn.o_proj.weight", (hidden, queries)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)
    yield "norm.weight" if is_head else "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config.get("draft_vocab_size", config["vocab_size"]), hidden)


def _tensor_bytes(name: str, shape: tuple[int, ...]) -> int:
    return (8 if name == _DRAFT_TOKENS else 2) * math.prod(shape)


def weight_bytes(config: dict[str, Any]) -> int:
    """Bytes of a checkpoint in bfloat16."""
    return sum(_tensor_bytes(name, shape) for name, shape in tensors(config))


def _draft_tokens(config: dict[str, Any]) -> np.ndarray:
    """Offsets that spread the head's tokens evenly over the target's."""
    ids: np.ndarray = np.arange(config["draft_vocab_size"], dtype=np.int64)
    offsets: np.ndarray = ids * config["vocab_size"] // config["draft_vocab_size"] - ids
    return offsets


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits: np.ndarray = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) >> 16).astype(np.uint16)


def _shards(config: dict[str, Any]) -> list[list[tuple[str, tuple[int, ...]]]]:
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, shape in tensors(config):
        tensor_bytes = _tensor_bytes(name, shape)
        if size and size + tensor_bytes > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += tensor_bytes
    return shards


def _write_shard(
    path: Path,
    entries: list[tuple[str, tuple[int, ...]]],
    config: dict[str, Any],
    block: np.ndarray,
    scale_one: np.ndarray,
) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in entries:
        end = offset + _tensor_bytes(name, shape)
        dtype = "I64" if name == _DRAFT_TOKENS else "BF16"
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for index, (name, shape) in enumerate(entries):
            if name == _DRAFT_TOKENS:
                _draft_tokens(config).tofile(file)
                continue
            left = math.prod(shape)
            source = scale_one if len(shape) == 1 else block
            begin = 7919 * index % len(source) if left < len(source) else 0
            while left > 0:
                part = source[begin : begin + left]
                part.tofile(file)
                left -= len(part)
                begin = 0


def write(name: str, directory: Path, deadline: float = math.inf) -> Path:
    """Writes a checkpoint of that shape, unless it is there; returns its folder.

    TimeoutError when time.monotonic() passes the deadline meanwhile: then there is no config.json.
    """
    config = SHAPES[name]
    target = directory / name
    if (target / "config.json").is_file():
        return target
    target.mkdir(parents=True, exist_ok=True)
    free = os.statvfs(target).f_bavail * os.statvfs(target).f_frsize
    if free < weight_bytes(config):
        raise OSError(f"{directory} has {free} bytes free, {name} takes {weight_bytes(config)}")
    generator = np.random.default_rng(0)
    count = min(_BLOCK_WEIGHTS, weight_bytes(config) // 2)
    block = _to_bfloat16(0.02 * generator.standard_normal(count, dtype=np.float32))
    ones = _to_bfloat16(1 + 0.1 * generator.standard_normal(config["hidden_size"] * 2))
    shards = _shards(config)
    index: dict[str, str] = {}
    for number, entries in enumerate(shards, 1):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no time left to write {name}")
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(target / file, entries, config, block, ones)
        index |= {tensor: file for tensor, _ in entries}
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")  # last: it is complete
    return target
