"""Converts `pytorch_model.bin` checkpoints, single or sharded, to safetensors."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.cache import require_free_space
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.layout import torch_files
from specdec_native.checkpoints.optional import import_optional
from specdec_native.checkpoints.progress import ProgressCallback, ProgressMeter
from specdec_native.checkpoints.safetensors_writer import (
    TensorSpec,
    shard_names,
    write_index,
    write_shard,
)

_COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*", "README.md")
_DTYPE_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def convert_torch(
    source: Path, directory: Path, *, progress: ProgressCallback | None = None
) -> None:
    """Writes the checkpoint `directory` (which exists and is empty) from the directory `source`.

    Each `.bin` file becomes one safetensors file with the same dtypes. Tensors that share their
    memory are kept once; where the output projection shares the embedding, config.json says so.
    Files are read with torch's restricted unpickler, which runs no code from them.

    Raises MissingDependencyError without torch, CheckpointError for a file that is not a plain
    dictionary of tensors.
    """
    files = torch_files(source)
    total_bytes = sum(file.stat().st_size for file in files)
    require_free_space(directory, total_bytes)
    meter = ProgressMeter(progress, total_bytes, "convert")
    names = ["model.safetensors"] if len(files) == 1 else shard_names(len(files))
    weight_map: dict[str, str] = {}
    written_bytes = 0
    tied = False
    for file, name in zip(files, names, strict=True):
        tensors, shares_head = _without_duplicates(_load(file))
        tied = tied or shares_head
        specs = [_spec(file, key, tensor) for key, tensor in tensors.items()]
        write_shard(directory / name, specs, meter.add)
        weight_map |= {spec.name: name for spec in specs}
        written_bytes += sum(spec.num_bytes for spec in specs)
    if len(names) > 1:
        write_index(directory, weight_map, written_bytes)
    _copy_companions(source, directory)
    if tied:
        _declare_tied(directory / "config.json")


def _import_torch() -> Any:
    return import_optional("torch", purpose="reading pytorch_model.bin", extra="torch")


def _load(file: Path) -> dict[str, Any]:
    torch = _import_torch()
    try:
        content = _load_mapped(torch, file)
    except (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError) as fault:
        raise CheckpointError(
            f"torch cannot read it as a file of weights ({fault}); download it again", file
        ) from fault
    if not isinstance(content, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
    ):
        raise CheckpointError("it is not a dictionary from names to tensors", file)
    tensors: dict[str, Any] = content
    return tensors


def _load_mapped(torch: Any, file: Path) -> Any:
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"  # torch before 1.6 wrote no zip, which cannot be mapped
    return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)


def _without_duplicates(tensors: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """(tensors with distinct memory, whether the output projection was the embedding)."""
    kept: dict[tuple[object, ...], str] = {}
    shares_head = False
    # The head comes last so that of a tied pair the embedding stays.
    for name in sorted(tensors, key=lambda name: (name.endswith("lm_head.weight"), name)):
        tensor = tensors[name]
        memory = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and memory in kept:
            shares_head = shares_head or name.endswith("lm_head.weight")
        else:
            kept[memory if tensor.numel() else (name,)] = name
    return {name: tensors[name] for name in kept.values()}, shares_head


def _spec(file: Path, name: str, tensor: Any) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPE_CODES:
        raise CheckpointError(
            f"tensor {name} has dtype {dtype}; supported: {', '.join(_DTYPE_CODES)}", file
        )
    return TensorSpec(name, _DTYPE_CODES[dtype], tuple(tensor.shape), _bytes_of(tensor))


def _bytes_of(tensor: Any) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
    def make() -> Iterator[npt.NDArray[np.generic]]:
        torch = _import_torch()
        yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()

    return make


def _copy_companions(source: Path, directory: Path) -> None:
    for pattern in _COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file() and not file.name.endswith(".index.json"):
                shutil.copyfile(file, directory / file.name)


def _declare_tied(config_path: Path) -> None:
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = True
    config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
