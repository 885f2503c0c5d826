"""Converts a GGUF file to a Hugging Face checkpoint directory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.cache import require_free_space
from specdec_native.checkpoints.gguf_config import generation_config, model_config
from specdec_native.checkpoints.gguf_file import GgufFile, GgufTensor
from specdec_native.checkpoints.gguf_integers import GROUP, IntegerType
from specdec_native.checkpoints.gguf_tokenizer import write_tokenizer
from specdec_native.checkpoints.progress import ProgressCallback, ProgressMeter
from specdec_native.checkpoints.safetensors_writer import (
    TensorSpec,
    float32_to_bfloat16,
    write_checkpoint,
)

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
# Gemma has four norms in a layer. Its norms multiply by 1 + weight: llama.cpp stores the sum, while
# transformers adds the 1 when the model runs.
_GEMMA_LAYER_NAMES = _LAYER_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERT_NAMES = {"ffn_gate": "w1", "ffn_down": "w2", "ffn_up": "w3"}
_CONSUMED = {"rope_freqs.weight"}  # becomes rope_scaling of config.json

_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_EXPERT_TENSOR = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|down|up))\.(\d+)\.weight")
_STACKED_EXPERTS = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|down|up))_exps\.weight")

_SAFETENSORS_DTYPES = {"bfloat16": "BF16", "float32": "F32"}


def convert_gguf(
    source: Path,
    directory: Path,
    *,
    dtype: str | None = None,
    keep_integers: bool = False,
    tie: bool = False,
    generation_overrides: dict[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Writes the checkpoint `directory` (which exists and is empty) from the GGUF file `source`.

    dtype: "bfloat16" or "float32"; by default float32 for a file of float32 matrices and bfloat16
        for any other. Quantised values are decoded to float32 and rounded once.
    keep_integers: quantised matrices stay quantised, as specdec_native.checkpoints.gguf_integers
        says, vectors keep their precision, and only other matrices get the dtype.
    tie: the original model shares its embedding with its output projection. A file that holds both
        usually quantised them differently; `output.weight`, the finer one, then serves for both.
    generation_overrides: entries of generation_config.json that the file gets wrong or lacks.

    Raises CheckpointError naming the file and what in it is not supported.
    """
    file = GgufFile(source)
    dtype = dtype or _default_dtype(file)
    if dtype not in _SAFETENSORS_DTYPES:
        raise ValueError(f"dtype must be bfloat16 or float32 for a GGUF file, not {dtype!r}")
    tied = tie or "output.weight" not in file.tensors
    config = model_config(file, dtype=dtype, tied=tied)
    if keep_integers:
        config |= _quantization_config(file)
    specs = _tensor_specs(file, config, _SAFETENSORS_DTYPES[dtype], tied, keep_integers)
    total_bytes = sum(spec.num_bytes for spec in specs)
    require_free_space(directory, total_bytes)

    _write_json(directory / "config.json", config)
    generation = generation_config(file) | (generation_overrides or {})
    _write_json(directory / "generation_config.json", generation)
    write_tokenizer(file, directory)
    write_checkpoint(directory, specs, ProgressMeter(progress, total_bytes, "convert").add)


def describe_gguf(source: Path, directory: Path) -> list[tuple[str, GgufTensor]]:
    """Writes config.json and the tokenizer that convert_gguf makes of a file, without weights.

    Returns the file's tensors by their names in the checkpoint. Raises what convert_gguf raises.
    """
    file = GgufFile(source)
    tied = "output.weight" not in file.tensors
    config = model_config(file, dtype=_default_dtype(file), tied=tied)
    tensors = list(_named_tensors(file, config["num_hidden_layers"]))
    for _, tensor in tensors:
        _row_order(file, tensor, config)  # raises for a shape that does not fit
    _write_json(directory / "config.json", config)
    write_tokenizer(file, directory)
    return tensors


def _default_dtype(file: GgufFile) -> str:
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    return "float32" if all(t.type_name == "F32" for t in matrices) else "bfloat16"


def _quantization_config(file: GgufFile) -> dict[str, Any]:
    """The quantization part of config.json; empty where no matrix is held in integers."""
    types = sorted({t.type_name for t in file.tensors.values() if t.integer_type is not None})
    if not types:
        return {}
    description = f"gguf {'+'.join(types).lower()}"
    settings = {"quant_method": "specdec_native", "format": description, "group_size": GROUP}
    return {"quantization_config": settings}


def _tensor_specs(
    file: GgufFile, config: dict[str, Any], dtype: str, tied: bool, keep_integers: bool
) -> list[TensorSpec]:
    specs: list[TensorSpec] = []
    for own_name, tensor in _named_tensors(file, config["num_hidden_layers"]):
        if tied and tensor.name == "token_embd.weight" and "output.weight" in file.tensors:
            continue
        head_is_embedding = tied and tensor.name == "output.weight"
        name = _GLOBAL_NAMES["token_embd.weight"] if head_is_embedding else own_name
        order = _row_order(file, tensor, config)
        if keep_integers and tensor.integer_type is not None:
            specs += _integer_specs(name, tensor, order, tensor.integer_type)
            continue
        kept = "F32" if keep_integers and len(tensor.shape) == 1 else dtype
        offset = -1.0 if _is_gemma(file) and len(tensor.shape) == 1 else 0.0
        chunks = _chunks(tensor, order, kept, offset)
        specs.append(TensorSpec(name=name, dtype=kept, shape=tensor.shape, chunks=chunks))
    return specs


def _integer_specs(
    name: str, tensor: GgufTensor, order: npt.NDArray[np.intp] | None, kind: IntegerType
) -> Iterator[TensorSpec]:
    """The tensors of a quantised matrix, in the form the core's WeightStore reads."""

    def chunks(attribute: str) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
        return lambda: (getattr(rows, attribute) for rows in tensor.integers(order))

    num_rows, num_inputs = tensor.shape
    groups = (num_rows, num_inputs // GROUP)
    codes = ("I8", tensor.shape) if kind.bits == 8 else ("U8", (num_rows, num_inputs // 2))
    yield TensorSpec(name, *codes, chunks("codes"))
    yield TensorSpec(f"{name}.scales", "F16", groups, chunks("scales"))
    if kind.has_mins:
        yield TensorSpec(f"{name}.mins", "F16", groups, chunks("mins"))


def _named_tensors(file: GgufFile, num_layers: int) -> Iterator[tuple[str, GgufTensor]]:
    """(Hugging Face name, tensor) for all that the checkpoint holds, stacked experts split up."""
    for tensor in file.tensors.values():
        if tensor.name in _CONSUMED:
            continue
        names = list(_names_of(tensor, _GEMMA_LAYER_NAMES if _is_gemma(file) else _LAYER_NAMES))
        if not names:
            raise file.error(f"tensor {tensor.name} has no place in a {file.architecture} model")
        for layer, name, part in names:
            if layer >= num_layers:
                raise file.error(f"tensor {tensor.name} is past the last of {num_layers} layers")
            yield name, part


def _is_gemma(file: GgufFile) -> bool:
    return bool(file.architecture == "gemma3")


def _names_of(
    tensor: GgufTensor, layer_names: dict[str, str]
) -> Iterator[tuple[int, str, GgufTensor]]:
    """(layer or -1, Hugging Face name, tensor), one for each expert; nothing if unknown."""
    if tensor.name in _GLOBAL_NAMES:
        yield -1, _GLOBAL_NAMES[tensor.name], tensor
    elif match := _STACKED_EXPERTS.fullmatch(tensor.name):
        for expert in range(tensor.shape[0]):
            name = _expert_name(match[1], expert, match[2])
            yield int(match[1]), name, tensor.slice(expert)
    elif match := _EXPERT_TENSOR.fullmatch(tensor.name):
        yield int(match[1]), _expert_name(match[1], int(match[3]), match[2]), tensor
    elif (match := _LAYER_TENSOR.fullmatch(tensor.name)) and match[2] in layer_names:
        name = f"model.layers.{match[1]}.{layer_names[match[2]]}.{match[3]}"
        yield int(match[1]), name, tensor


def _expert_name(layer: str, expert: int, part: str) -> str:
    return f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{_EXPERT_NAMES[part]}.weight"


def _row_order(
    file: GgufFile, tensor: GgufTensor, config: dict[str, Any]
) -> npt.NDArray[np.intp] | None:
    """Which of the file's rows come first in the checkpoint; None: they keep their order.

    For Llama, GGUF files interleave each head's rotary pairs (row 2i turns with row 2i+1), while
    Hugging Face keeps the halves apart (row i turns with row i + head_dim/2).
    """
    match = _LAYER_TENSOR.fullmatch(tensor.name)
    if file.architecture != "llama" or match is None or match[2] not in ("attn_q", "attn_k"):
        return None
    heads = config["num_attention_heads" if match[2] == "attn_q" else "num_key_value_heads"]
    num_rows = tensor.shape[0]
    if num_rows != heads * config["head_dim"] or config["head_dim"] % 2:
        raise file.error(
            f"tensor {tensor.name} has {num_rows} rows, which are not {heads} heads of "
            f"{config['head_dim']}"
        )
    halves: npt.NDArray[np.intp] = np.arange(num_rows).reshape(heads, -1, 2).swapaxes(1, 2)
    return halves.reshape(-1)


def _chunks(
    tensor: GgufTensor, order: npt.NDArray[np.intp] | None, dtype: str, offset: float
) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
    def make() -> Iterator[npt.NDArray[np.generic]]:
        for stored in tensor.rows(order):
            rows = stored + np.float32(offset) if offset else stored
            yield float32_to_bfloat16(rows) if dtype == "BF16" else rows

    return make


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
