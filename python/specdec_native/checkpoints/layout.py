"""Recognises what a directory or a file holds."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path, PurePosixPath

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.text_files import is_file, read_json_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_SINGLE_FILE = "pytorch_model.bin"
TORCH_INDEX_FILE = "pytorch_model.bin.index.json"
GGUF_MAGIC = b"GGUF"
TOKENIZER_MISSING = "tokenizer_missing.txt"
"""Says in a checkpoint made from a GGUF file why it has no tokenizer.json."""

# A part of a GGUF that was split with its metadata, and one of a file that was merely cut.
_GGUF_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_GGUF_CUT = re.compile(r"(.+\.gguf)-split-[a-z]+")

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

    Raises CheckpointError if an index names a file that is missing, or for a GGUF in pieces.
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
    """The GGUF models of `directory`, by name; of a split one, its first part that is there.

    Raises CheckpointError if there are none but pieces that were cut.
    """
    models: dict[str, Path] = {}
    for file in sorted(directory.glob("*.gguf")):
        if not file.name.startswith("mmproj"):  # the vision part of a model
            part = _GGUF_PART.fullmatch(file.name)
            models.setdefault(f"{part[1]}-of-{part[3]}" if part else file.name, file)
    if not models:
        for piece in sorted(directory.glob("*.gguf-split-*")):
            refuse_cut_gguf(piece)
    return list(models.values())


def gguf_parts(path: Path) -> list[Path]:
    """The files, in order, that make up the GGUF of which `path` is one; `path` if it is whole.

    Raises CheckpointError that names the part that is missing.
    """
    named = _GGUF_PART.fullmatch(path.name)
    if named is None or not 1 <= int(named[2]) <= int(named[3]):
        return [path]
    count = int(named[3])
    parts = [
        path.with_name(f"{named[1]}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    for part in parts:
        if not is_file(part):
            raise CheckpointError(
                f"this part of a GGUF in {count} is missing; all must lie in one directory", part
            )
    return parts


def refuse_cut_gguf(path: Path) -> None:
    """Raises CheckpointError if `path` is a piece of a GGUF file that was cut anywhere."""
    cut = _GGUF_CUT.fullmatch(path.name)
    if cut is not None:
        raise CheckpointError(
            f"this is a piece of a file; join the pieces first: cat {cut[1]}-split-* > {cut[1]}",
            path,
        )


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
