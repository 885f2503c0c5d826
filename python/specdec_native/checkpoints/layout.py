"""Recognises what a directory or a file holds."""

from __future__ import annotations

from enum import Enum
from pathlib import Path, PurePosixPath

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.text_files import is_file, read_json_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_SINGLE_FILE = "pytorch_model.bin"
TORCH_INDEX_FILE = "pytorch_model.bin.index.json"
GGUF_MAGIC = b"GGUF"

NOT_WEIGHTS = (
    *("training_args.bin", "optimizer.bin"),
    *("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pt"),
)
"""Files that training leaves beside the weights."""

# Files that a conversion copies beside the weights.
_COMPANIONS = (
    "*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.txt", "*.model", "LICENSE*",
    "README.md",
)  # fmt: skip


class CheckpointKind(Enum):
    """The forms of weights a directory can hold."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"
    GGUF = "gguf"


def checkpoint_kind(directory: Path) -> CheckpointKind | None:
    """The form in which `directory` holds a model; None: it holds none.

    Where there are several forms, the one that needs no conversion is preferred.

    Raises CheckpointError if an index names a file that is missing.
    """
    has_config = (directory / "config.json").is_file()
    if has_config and _has_safetensors(directory):
        return CheckpointKind.SAFETENSORS
    if has_config and _named_torch_files(directory):
        return CheckpointKind.TORCH
    if gguf_files(directory):
        return CheckpointKind.GGUF
    # Weights of draft heads may have other file names.
    if has_config and _only_file(directory, ".safetensors"):
        return CheckpointKind.SAFETENSORS
    return CheckpointKind.TORCH if has_config and torch_files(directory) else None


def gguf_files(directory: Path) -> list[Path]:
    """The GGUF files of `directory`, by name."""
    return sorted(directory.glob("*.gguf"))


def is_gguf(path: Path) -> bool:
    """Whether the file starts as GGUF does; says nothing about the rest of it."""
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def torch_files(directory: Path) -> list[Path]:
    """The `.bin` or `.pt` files that make up the checkpoint; empty if it has none.

    Raises CheckpointError if the index is malformed or names a file that is missing.
    """
    return (
        _named_torch_files(directory)
        or _only_file(directory, ".bin")
        or _only_file(directory, ".pt")
    )


def companion_files(directory: Path) -> list[Path]:
    """The files of a checkpoint beside its weights, by name: config, tokenizer, chat templates."""
    found = {file for pattern in _COMPANIONS for file in directory.glob(pattern)}
    return sorted(
        file for file in found if file.is_file() and not file.name.endswith(".index.json")
    )


def _named_torch_files(directory: Path) -> list[Path]:
    single = directory / TORCH_SINGLE_FILE
    if single.is_file():
        return [single]
    index = directory / TORCH_INDEX_FILE
    return _indexed_files(index) if index.is_file() else []


def _only_file(directory: Path, ending: str) -> list[Path]:
    """The weight file with this ending, if there is exactly one; else an empty list."""
    files = [file for file in directory.glob(f"*{ending}") if file.name not in NOT_WEIGHTS]
    return files if len(files) == 1 else []


def safetensors_files(directory: Path) -> list[Path]:
    """The `.safetensors` files that make up the checkpoint; empty if it has none.

    Raises CheckpointError if the index is malformed or names a file that is missing.
    """
    if (directory / SINGLE_FILE).is_file() or not (directory / INDEX_FILE).is_file():
        return sorted(directory.glob("*.safetensors"))
    return _indexed_files(directory / INDEX_FILE)


def indexed_names(index: Path) -> list[str]:
    """The files an index says a checkpoint consists of, by their paths below its folder.

    Raises CheckpointError if it is malformed or names something outside of the folder.
    """
    try:
        names = sorted(set(read_json_object(index)["weight_map"].values()))
        paths = [PurePosixPath(name) for name in names]
    except (KeyError, TypeError, AttributeError) as fault:
        raise CheckpointError(f"the index is malformed: {fault}", index) from fault
    for name, path in zip(names, paths, strict=True):
        if not path.name or path.is_absolute() or ".." in path.parts or "\0" in name:
            raise CheckpointError(
                f"weight_map names {name!r:.80}, which is no file below the folder of the index",
                index,
            )
    return names


def _has_safetensors(directory: Path) -> bool:
    if (directory / SINGLE_FILE).is_file():
        return True
    index = directory / INDEX_FILE
    return index.is_file() and bool(_indexed_files(index))


def _indexed_files(index: Path) -> list[Path]:
    files = [index.parent / name for name in indexed_names(index)]
    for file in files:
        if not is_file(file):
            raise CheckpointError("the index names this file, but it is missing", file)
    return files
