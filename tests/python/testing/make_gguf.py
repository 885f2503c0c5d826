"""Writes small GGUF files for the tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

# Where in a block the float16 scales are, and how large beside each other. A scale of mins is as
# much larger as makes values of random integers symmetric around zero.
_SCALES = {
    Type.Q2_K: {80: 1.0, 82: 1.5}, Type.Q3_K: {108: 1.0}, Type.Q4_K: {0: 1.0, 2: 7.5},
    Type.Q5_K: {0: 1.0, 2: 15.5}, Type.Q6_K: {208: 1.0}, Type.IQ1_S: {0: 1.0},
    Type.IQ2_XXS: {0: 1.0}, Type.IQ2_XS: {0: 1.0}, Type.IQ2_S: {0: 1.0}, Type.IQ3_XXS: {0: 1.0},
    Type.IQ3_S: {0: 1.0}, Type.IQ4_NL: {0: 1.0}, Type.IQ4_XS: {0: 1.0}, Type.TQ1_0: {52: 1.0},
    Type.TQ2_0: {64: 1.0},
}  # fmt: skip
_OWN_SCALES = (Type.IQ1_M, Type.NVFP4)


def encode(values: npt.NDArray[np.float32], kind: Type) -> npt.NDArray[Any]:
    """`values` [rows, columns] in the encoding `kind`.

    The gguf package has no encoder for some types: for these, and for those whose encoder needs
    few of the codes, the blocks are random, of values about 1/16, and `values` gives only the shape
    and the seed.
    """
    if kind is Type.F64:
        return values.astype(np.float64)
    if kind not in _SCALES and kind not in _OWN_SCALES:
        return np.asarray(gguf.quantize(values, kind))
    blocks = random_blocks(values.size, kind, 1.0)
    size = 1 / (16 * gguf.dequantize(blocks, kind).std())
    return random_blocks(values.size, kind, float(size)).reshape(*values.shape[:-1], -1)


def random_blocks(num_values: int, kind: Type, size: float) -> npt.NDArray[np.uint8]:
    """Blocks of random codes; `size`: of the scales."""
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(num_values)
    blocks = rng.integers(0, 256, (num_values // block_values, block_bytes), dtype=np.uint8)
    spread = size * rng.uniform(0.5, 1.5, len(blocks))
    for at, factor in _SCALES.get(kind, {}).items():
        scale = (factor * spread).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    if kind is Type.NVFP4:  # four floats of 8 bits, between 1/64 and 1/8
        blocks[:, :4] = 8 + blocks[:, :4] % 24
    if kind is Type.IQ1_M:  # a float16 in the upper four bits of four words
        bits = spread.astype(np.float16).view(np.uint16)
        for word in range(4):
            high = (bits >> (4 * word)) % 16
            blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] % 16 + 16 * high
    return blocks


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
