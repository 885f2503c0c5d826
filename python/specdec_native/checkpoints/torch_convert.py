"""Converts `pytorch_model.bin` checkpoints, single or sharded, to safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.cache import require_free_space
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.layout import companion_files, torch_files
from specdec_native.checkpoints.optional import import_optional
from specdec_native.checkpoints.progress import ProgressCallback, ProgressMeter
from specdec_native.checkpoints.safetensors_writer import (
    TensorSpec,
    shard_names,
    write_index,
    write_shard,
)
from specdec_native.checkpoints.text_files import read_json_object

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"
_FUSION = "fc.weight"
_DTYPE_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


# A layer that a model uses several times is written once per name: ALBERT's layer 24 times.
_MOST_COPIES = 64


def convert_torch(
    source: Path, directory: Path, *, progress: ProgressCallback | None = None
) -> None:
    """Writes the checkpoint `directory` (which exists and is empty) from the directory `source`.

    Each `.bin` file becomes one safetensors file with the same dtypes. Where the output projection
    shares the memory of the embedding, it is left out and config.json says so; other tensors that
    share memory are written under each of their names.
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
        specs, shares_head = _specs(file)
        num_bytes = sum(spec.num_bytes for spec in specs)
        if num_bytes > _MOST_COPIES * file.stat().st_size:
            raise CheckpointError(f"its tensors would take {num_bytes} bytes written out", file)
        require_free_space(directory, num_bytes)
        write_shard(directory / name, specs, meter.add)
        tied = tied or shares_head
        weight_map |= {spec.name: name for spec in specs}
        written_bytes += num_bytes
    if len(names) > 1:
        write_index(directory, weight_map, written_bytes)
    for file in companion_files(source):
        copy = directory / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)
    if tied:
        _declare_tied(directory / "config.json")


def _import_torch() -> Any:
    return import_optional("torch", purpose="reading pytorch_model.bin", extra="torch")


def _specs(file: Path) -> tuple[list[TensorSpec], bool]:
    """(tensors of a file to write, whether its output projection is its embedding)."""
    torch = _import_torch()
    try:
        tensors = _load_mapped(torch, file)
    except Exception as fault:  # a mangled pickle may raise whatever the code it names raises
        raise CheckpointError(
            f"torch cannot read it as a file of weights ({type(fault).__name__}: {fault}); "
            "download it again",
            file,
        ) from fault
    if not isinstance(tensors, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in tensors.items()
    ):
        raise CheckpointError("it is not a dictionary from names to tensors", file)
    specs = [_spec(file, name, tensor) for name, tensor in tensors.items()]
    embeddings = {_memory(t) for name, t in tensors.items() if name.endswith(_EMBEDDING)}
    # EAGLE heads, recognised by their fusion matrix, borrow missing matrices from the target.
    borrows = _FUSION in tensors
    heads = [] if borrows else [name for name in tensors if name.endswith(_HEAD)]
    tied = [name for name in heads if _memory(tensors[name]) in embeddings]
    return [spec for spec in specs if spec.name not in tied], bool(tied)


def _load_mapped(torch: Any, file: Path) -> Any:
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"  # torch before 1.6 wrote no zip, which cannot be mapped
    return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)


def _memory(tensor: Any) -> tuple[object, ...]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _spec(file: Path, name: str, tensor: Any) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPE_CODES:
        raise CheckpointError(
            f"tensor {name:.200} has dtype {dtype}; supported: {', '.join(_DTYPE_CODES)}", file
        )
    if str(tensor.layout) != "torch.strided" or tensor.device.type != "cpu" or tensor.is_nested:
        raise CheckpointError(
            f"tensor {name:.200} has no plain values (layout {tensor.layout}, device "
            f"{tensor.device}); only dense tensors are read",
            file,
        )
    spec = TensorSpec(name, _DTYPE_CODES[dtype], tuple(tensor.shape), _bytes_of(file, tensor))
    stored = tensor.untyped_storage().nbytes()
    # A view that repeats its elements, as expand() makes, may be of any size.
    if spec.num_bytes > max(stored, file.stat().st_size):
        raise CheckpointError(
            f"tensor {name:.200} has {spec.num_bytes} bytes, but only {stored} are stored", file
        )
    return spec


def _bytes_of(file: Path, tensor: Any) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
    size = file.stat().st_size

    def make() -> Iterator[npt.NDArray[np.generic]]:
        torch = _import_torch()
        # torch maps the file: touching pages past a truncated end would kill the process.
        if file.stat().st_size != size:
            raise CheckpointError("the file has changed while it was being converted", file)
        plain = tensor.detach().resolve_neg().contiguous()
        yield plain.reshape(-1).view(torch.uint8).numpy()

    return make


def _declare_tied(config_path: Path) -> None:
    config = read_json_object(config_path) | {"tie_word_embeddings": True}
    config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
