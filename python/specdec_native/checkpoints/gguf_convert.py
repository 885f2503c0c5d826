"""Converts a GGUF file to a Hugging Face checkpoint directory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.cache import require_free_space
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_config import family_of, generation_config, model_config
from specdec_native.checkpoints.gguf_families import GgufFamily
from specdec_native.checkpoints.gguf_file import GgufFile, GgufTensor
from specdec_native.checkpoints.gguf_forms import GROUP, IntegerType
from specdec_native.checkpoints.gguf_names import Experts
from specdec_native.checkpoints.gguf_tokenizer import write_tokenizer
from specdec_native.checkpoints.progress import ProgressCallback, ProgressMeter
from specdec_native.checkpoints.safetensors_writer import (
    TensorSpec,
    float32_to_bfloat16,
    write_checkpoint,
)

_TOP_TENSOR = re.compile(r"(\w+)\.(weight|bias)")
_ANY_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+|shortconv\.\w+)\.(weight|bias|scale)")
_EXPERT_TENSOR = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|down|up))\.(\d+)\.weight")
_STACKED_EXPERTS = re.compile(r"blk\.(\d+)\.(ffn_(?:gate_up|gate|down|up))_exps\.weight")
_KEYS_AND_VALUES = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")

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
    family = family_of(file)
    tensors = list(_named_tensors(file, family, config))
    for _, tensor in tensors:
        _row_order(file, family, tensor, config)  # raises for a shape that does not fit
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
    family = family_of(file)
    specs: list[TensorSpec] = []
    for own_name, tensor in _named_tensors(file, family, config):
        if tied and tensor.name == "token_embd.weight" and "output.weight" in file.tensors:
            continue
        head_is_embedding = tied and tensor.name == "output.weight"
        name = f"{family.top_names['token_embd']}.weight" if head_is_embedding else own_name
        order = _row_order(file, family, tensor, config)
        if keep_integers and tensor.integer_type is not None:
            specs += _integer_specs(name, tensor, order, tensor.integer_type)
            continue
        is_vector = 1 in (len(tensor.shape), tensor.shape[0]) or tensor.name.endswith(".bias")
        is_changed = tensor.change is not None
        kept = "F32" if is_changed or (keep_integers and is_vector) else dtype
        is_norm = len(tensor.shape) == 1 and tensor.name.endswith("norm.weight") and not is_changed
        offset = -family.norm_offset if is_norm else 0.0
        chunks = _chunks(tensor, order, kept, offset)
        specs.append(TensorSpec(name=name, dtype=kept, shape=tensor.shape, chunks=chunks))
    return [*specs, *_value_specs(file, family, config["num_hidden_layers"])]


def _value_specs(file: GgufFile, family: GgufFamily, num_layers: int) -> Iterator[TensorSpec]:
    """The tensors of one value whose values are metadata."""
    for key, name in family.layer_values.items():
        for layer, value in enumerate(file.layer_values(key, num_layers)):
            values = np.array([value], np.float32)
            chunks = _constant(values)
            yield TensorSpec(f"{family.layers}.{layer}.{name}", "F32", values.shape, chunks)


def _constant(
    values: npt.NDArray[np.generic],
) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
    return lambda: iter([values])


def _integer_specs(
    name: str, tensor: GgufTensor, order: npt.NDArray[np.intp] | None, kind: IntegerType
) -> Iterator[TensorSpec]:
    """The tensors of a quantised matrix, in the form the core's WeightStore reads."""

    def chunks(
        part: Literal["codes", "scales", "mins"],
    ) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
        return lambda: tensor.integers(part, order)

    num_rows, num_inputs = tensor.shape
    groups = (num_rows, num_inputs // kind.group)
    if groups[1] % math.prod(tensor.input_blocks):
        raise CheckpointError(
            f"tensor {tensor.name} is of type {tensor.type_name}, and heads of "
            f"{num_inputs // math.prod(tensor.input_blocks)} inputs are no whole groups of "
            f"{kind.group}; give quantization='none'",
            tensor.data.path,
        )
    codes = ("I8", tensor.shape) if kind.bits == 8 else ("U8", (num_rows, num_inputs // 2))
    yield TensorSpec(name, *codes, chunks("codes"))
    yield TensorSpec(f"{name}.scales", "F16", groups, chunks("scales"))
    if kind.mins is not None:
        yield TensorSpec(f"{name}.mins", "F16", groups, chunks("mins"))
    if kind.table is not None:
        table = np.array(kind.table, np.int8)
        yield TensorSpec(f"{name}.table", "I8", table.shape, _constant(table))


def _named_tensors(
    file: GgufFile, family: GgufFamily, config: dict[str, Any]
) -> Iterator[tuple[str, GgufTensor]]:
    """(Hugging Face name, tensor) for all that the checkpoint holds, stacked experts split up."""
    num_layers = config["num_hidden_layers"]
    num_with_kv = num_layers - config.get("num_kv_shared_layers", 0)
    # Layers behind the last, of models that have any, predict later tokens and are left out.
    num_stored = num_layers + file.hyperparameter("nextn_predict_layers", 0)
    for tensor in _joined_tensors(file, family):
        if tensor.name in file.vectors_read:  # and is in config.json
            continue
        match = _ANY_LAYER.fullmatch(tensor.name)
        layer = int(match[1]) if match else -1
        if num_layers <= layer < num_stored:
            continue
        if match and num_with_kv <= layer < num_layers and match[2] in _KEYS_AND_VALUES:
            continue  # such a layer reads those of an earlier one
        whole = _without_padding(tensor, config)
        for part in family.tensors(whole, config) if family.tensors else (whole,):
            names = list(_names_of(part, family))
            if not names:
                raise file.error(
                    f"tensor {tensor.name} has no place in a {file.architecture} model"
                )
            if layer >= num_layers:
                raise file.error(f"tensor {tensor.name} is past the last of {num_layers} layers")
            yield from names


def _without_padding(tensor: GgufTensor, config: dict[str, Any]) -> GgufTensor:
    """The tensor, without the rows behind those that config.json gives the table of layers."""
    num_rows = config.get("vocab_size_per_layer_input")
    if num_rows is None or tensor.name != "per_layer_token_embd.weight":
        return tensor
    return tensor.first_rows(num_rows)


def _joined_tensors(file: GgufFile, family: GgufFamily) -> Iterator[GgufTensor]:
    """All tensors, those that become one already joined."""
    partners = {**family.joins, **{second: first for first, second in family.joins.items()}}
    for tensor in file.tensors.values():
        match = _ANY_LAYER.fullmatch(tensor.name)
        if not match or match[2] not in partners:
            yield tensor
            continue
        partner = f"blk.{match[1]}.{partners[match[2]]}"
        if partner not in file.tensors:
            raise file.error(f"tensor {partner} is missing, and {tensor.name} is there")
        if match[2] in family.joins:
            yield tensor.joined(file.tensors[partner], by_turns=match[2].endswith(".bias"))


def _names_of(tensor: GgufTensor, family: GgufFamily) -> Iterator[tuple[str, GgufTensor]]:
    """(Hugging Face name, tensor), one for each expert; nothing if unknown."""
    top = _TOP_TENSOR.fullmatch(tensor.name)
    layer = _LAYER_TENSOR.fullmatch(tensor.name)
    stacked = _STACKED_EXPERTS.fullmatch(tensor.name)
    expert = _EXPERT_TENSOR.fullmatch(tensor.name)
    bare = _ANY_LAYER.fullmatch(tensor.name)
    if top and top[1] in family.top_names:
        yield f"{family.top_names[top[1]]}.{top[2]}", tensor
    elif top and top[1] in family.top_stacks and len(tensor.shape) == 3:
        for index in range(tensor.shape[0]):
            yield f"{family.top_stacks[top[1]]}.{index}.{top[2]}", tensor.slice(index)
    elif layer and f"{layer[2]}.{layer[3]}" in family.layer_names:
        whole = family.layer_names[f"{layer[2]}.{layer[3]}"]
        yield f"{family.layers}.{layer[1]}.{whole}", tensor
    elif layer and layer[2] in family.layer_names:
        name = f"{family.layers}.{layer[1]}.{family.layer_names[layer[2]]}.{layer[3]}"
        is_row = layer[2] in family.row_matrices and len(tensor.shape) == 1
        yield name, tensor.as_row() if is_row else tensor
    elif bare and bare[2] in family.bare_names:
        yield f"{family.layers}.{bare[1]}.{family.bare_names[bare[2]]}", tensor
    elif family.experts and stacked and len(tensor.shape) == 3:
        for index in range(tensor.shape[0]):
            matrix = tensor.slice(index)
            fused = stacked[2] == "ffn_gate_up"  # all gates, and all ups behind them
            parts = ("ffn_gate", "ffn_up") if fused else (stacked[2],)
            matrices = matrix.halves() if fused else (matrix,)
            for part, half in zip(parts, matrices, strict=True):
                yield _expert_name(family, family.experts, stacked[1], part, index), half
    elif family.experts and expert:
        name = _expert_name(family, family.experts, expert[1], expert[2], int(expert[3]))
        yield name, tensor


def _expert_name(family: GgufFamily, names: Experts, layer: str, part: str, index: int) -> str:
    return f"{family.layers}.{layer}.{names.prefix}.{index}.{names.parts[part]}.weight"


def _row_order(
    file: GgufFile, family: GgufFamily, tensor: GgufTensor, config: dict[str, Any]
) -> npt.NDArray[np.intp] | None:
    """Which of the file's rows come first in the checkpoint; None: they keep their order."""
    layer = _LAYER_TENSOR.fullmatch(tensor.name)
    if layer and family.interleaves_pairs and layer[2] in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if layer[2] == "attn_q" else "num_key_value_heads"]
        return _rows(file, tensor, (heads, -1, 2), (0, 2, 1), heads * config["head_dim"])
    if layer and family.fuses_all_heads and layer[2] == "attn_qkv":
        heads = config["num_attention_heads"]
        return _rows(file, tensor, (3, heads, -1), (1, 0, 2), 3 * config["hidden_size"])
    return None


def _rows(
    file: GgufFile,
    tensor: GgufTensor,
    shape: tuple[int, int, int],
    axes: tuple[int, int, int],
    expected: int,
) -> npt.NDArray[np.intp]:
    """The rows of `tensor` as an array of this shape, transposed."""
    num_rows = tensor.shape[0]
    if num_rows != expected or num_rows % math.prod(n for n in shape if n > 0):
        raise file.error(
            f"tensor {tensor.name} has {num_rows} rows, expected {expected} that come in "
            f"{' x '.join(str(n) for n in shape if n > 0)}"
        )
    return np.arange(num_rows).reshape(shape).transpose(axes).reshape(-1)


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
