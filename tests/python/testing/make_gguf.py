"""Writes small GGUF files for the tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

# Bytes of a block of 256 values, and where in it the float16 scales are and how large. A scale of
# mins is as much larger as makes values of random integers symmetric around zero.
_K_BLOCKS = {
    Type.Q2_K: (84, {80: 1e-2, 82: 1.5e-2}),
    Type.Q4_K: (144, {0: 3e-4, 2: 7.5 * 3e-4}),
    Type.Q5_K: (176, {0: 1.5e-4, 2: 15.5 * 1.5e-4}),
    Type.Q6_K: (210, {208: 5e-5}),
}


def encode(values: npt.NDArray[np.float32], kind: Type) -> npt.NDArray[Any]:
    """`values` [rows, columns] in the encoding `kind`.

    The gguf package has no encoder for the K types: for these the blocks are random, of values
    about 1/16, and `values` gives only the shape and the seed.
    """
    if kind not in _K_BLOCKS:
        return np.asarray(gguf.quantize(values, kind))
    block_bytes, scales = _K_BLOCKS[kind]
    rng = np.random.default_rng(values.size)
    blocks = rng.integers(0, 256, (values.size // 256, block_bytes), dtype=np.uint8)
    spread = rng.uniform(0.5, 1.5, len(blocks))
    for at, size in scales.items():
        scale = (spread * size).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*values.shape[:-1], -1)


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[np.float32]],
    kinds: Mapping[str, Type] | None = None,
) -> Path:
    """A GGUF file; tensors not in `kinds` are F32. Keys starting with "." get the architecture."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, f"{architecture}{key}" if key.startswith(".") else key, value)
    for name, values in tensors.items():
        kind = (kinds or {}).get(name, Type.F32)
        writer.add_tensor(name, np.ascontiguousarray(encode(values, kind)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


LLAMA_METADATA: dict[str, Any] = {
    ".block_count": 1,
    ".context_length": 128,
    ".embedding_length": 256,
    ".feed_forward_length": 512,
    ".attention.head_count": 4,
    ".attention.head_count_kv": 2,
    ".attention.layer_norm_rms_epsilon": 1e-5,
    ".rope.freq_base": 10000.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def llama_tensors(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random tensors of the one-layer model that LLAMA_METADATA describes, vocabulary of 32."""
    rng = np.random.default_rng(seed)
    shapes = {
        "token_embd.weight": (32, 256),
        "blk.0.attn_norm.weight": (256,),
        "blk.0.attn_q.weight": (256, 256),
        "blk.0.attn_k.weight": (128, 256),
        "blk.0.attn_v.weight": (128, 256),
        "blk.0.attn_output.weight": (256, 256),
        "blk.0.ffn_norm.weight": (256,),
        "blk.0.ffn_gate.weight": (512, 256),
        "blk.0.ffn_up.weight": (512, 256),
        "blk.0.ffn_down.weight": (256, 512),
        "output_norm.weight": (256,),
    }
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
