"""Writes a head as a checkpoint."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specdec_lab.training.files import write_whole
from specdec_lab.training.heads.base import HeadFiles
from specdec_native.speculation.drafter_options import TOKEN_MAP_FILE

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def write_head(files: HeadFiles, directory: Path, dtype: str = "bfloat16") -> Path:
    """Writes config.json, model.safetensors and, if any, TOKEN_MAP_FILE; returns the directory.

    Each file replaces an earlier one atomically, the config last, so that a reader never sees a
    partial file, nor a config without tensors. Other files of the directory stay.

    Args:
        files: the head.
        directory: created if missing.
        dtype: one of DTYPES, for all floating-point tensors.

    Raises TrainingError where the disk is full or the directory cannot be written; earlier files
    stay intact.
    """
    tensors = {name: _stored(tensor, DTYPES[dtype]) for name, tensor in files.tensors.items()}
    text = json.dumps({**files.config, "torch_dtype": dtype}, indent=2) + "\n"

    def write_tensors(path: Path) -> None:
        try:
            save_file(tensors, path, metadata={"format": "pt"})
        except SafetensorError as fault:  # also its error for a full disk
            raise OSError(errno.EIO, str(fault)) from fault

    write_whole(directory / "model.safetensors", write_tensors)
    if files.token_map is not None:
        ids = json.dumps(files.token_map.tolist()) + "\n"
        write_whole(directory / TOKEN_MAP_FILE, lambda path: path.write_text(ids))
    write_whole(directory / "config.json", lambda path: path.write_text(text))
    return directory


def _stored(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy on the CPU that shares its memory with no other tensor."""
    kept = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", kept, copy=True).contiguous()
