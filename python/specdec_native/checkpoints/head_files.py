"""Removes from a draft head the tensors that its target also holds, and restores them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.head_registry import RegistryHead
from specdec_native.checkpoints.layout import SINGLE_FILE
from specdec_native.checkpoints.safetensors_file import (
    StoredTensor,
    open_checkpoint,
    open_file,
    spec_of,
)
from specdec_native.checkpoints.safetensors_writer import TensorSpec, write_shard
from specdec_native.checkpoints.text_files import read_json_object

logger = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]

_TARGET_HEADS = ("lm_head.weight", "model.embed_tokens.weight")  # the second where they are tied
OUTPUT_MATRIX = re.compile(r"lm_head\.weight|(medusa_heads\.)?(lm_heads\.\d+|\d+\.\d+)\.weight")
"""Names of the LM heads in EAGLE, in vLLM's Medusa and in Medusa's own code."""


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def scored_tokens(tensors: Mapping[str, StoredTensor], vocab_size: int) -> Rows:
    """The target's token id of every token that a head scores, in the head's order.

    Raises CheckpointError for ids that a target of `vocab_size` tokens does not have.
    """
    for name, is_offset in (("d2t", True), ("token_map", False)):
        tensor = tensors.get(name)
        if tensor is None:
            continue
        ids = np.array(tensor.values(), np.int64)
        if is_offset:
            ids += np.arange(len(ids))
        if ids.ndim != 1 or not ((ids >= 0) & (ids < vocab_size)).all():
            raise CheckpointError(
                f"tensor {name!r} names tokens that a target of {vocab_size} tokens does not have",
                tensor.file,
            )
        return ids
    return np.arange(vocab_size)


class TargetHead:
    """The LM head of a target's checkpoint: [vocabulary, hidden size]."""

    def __init__(self, directory: Path) -> None:
        tensors = open_checkpoint(directory)
        found = next((tensors[name] for name in _TARGET_HEADS if name in tensors), None)
        if found is None or len(found.shape) != 2:
            raise CheckpointError(f"holds no {' or '.join(_TARGET_HEADS)}", directory)
        self._tensor = found

    @property
    def vocab_size(self) -> int:
        """Rows."""
        return self._tensor.shape[0]

    @property
    def hidden_size(self) -> int:
        """Elements of a row."""
        return self._tensor.shape[1]

    def rows(self, ids: Rows) -> npt.NDArray[np.uint16]:
        """The bits of some rows in bfloat16."""
        return self._tensor.as_bfloat16(ids)


def rows_digest(rows: npt.NDArray[np.uint16]) -> str:
    """SHA-256 of the bits of rows."""
    return hashlib.sha256(np.ascontiguousarray(rows, "<u2").tobytes()).hexdigest()


def complete_head(head: RegistryHead, target: Path, directory: Path) -> None:
    """Writes the whole checkpoint of a head to `directory`, which exists and is empty.

    Raises CheckpointError where the shipped file is not what was published, or `target` is another
    model than the head was trained for.
    """
    source = head.directory / SINGLE_FILE
    if not source.is_file() or sha256_of(source) != head.sha256:
        raise CheckpointError(
            f"is missing or damaged: it is not the file of {head.name} that was published; install "
            "the package again",
            source,
        )
    config = read_json_object(head.directory / "config.json")
    tensors = open_file(source)
    rows = _rows_for(head, config, tensors, target)
    specs = [spec_of(name, t.dtype, t.values()) for name, t in tensors.items()]
    specs += [spec_of(name, "BF16", rows) for name in head.borrowed]
    write_shard(directory / SINGLE_FILE, specs)
    for file in sorted(head.directory.iterdir()):
        if file.name != SINGLE_FILE:
            shutil.copyfile(file, directory / file.name)
    provenance = {
        "name": head.name,
        "method": head.method,
        "target": head.target,
        "sha256": head.sha256,
        "borrowed": list(head.borrowed),
        "trained_with_these_rows": rows_digest(rows) == head.rows_sha256,
    }
    text = json.dumps(provenance, indent=2) + "\n"
    (directory / "specdec_provenance.json").write_text(text, encoding="utf-8")


def _rows_for(
    head: RegistryHead,
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    target: Path,
) -> npt.NDArray[np.uint16]:
    output = TargetHead(target)
    sizes = {"vocab_size": output.vocab_size, "hidden_size": output.hidden_size}
    for key, size in sizes.items():
        if config.get(key, size) != size:
            raise CheckpointError(
                f"{key} is {size}, and {head.name} was trained for {head.target}, where it is "
                f"{config[key]}: give a head of this model",
                target,
            )
    rows = output.rows(scored_tokens(tensors, output.vocab_size))
    if rows_digest(rows) != head.rows_sha256:
        logger.warning(
            "the weights of %s at %s are not those that %s was trained with, perhaps before or "
            "after quantisation; answers are right, and fewer drafts may be accepted",
            head.target,
            target,
            head.name,
        )
    return rows


def without_borrowed(source: Path, target: Path) -> tuple[list[TensorSpec], tuple[str, ...], str]:
    """The tensors of a head in bfloat16, except those that its target also holds.

    Returns the tensors to write, the names of those left out, and the digest of their rows.
    Raises CheckpointError for files that cannot be read.
    """
    tensors = open_checkpoint(source)
    output = TargetHead(target)
    rows = output.rows(scored_tokens(tensors, output.vocab_size))
    kept, borrowed = [], []
    for name, tensor in tensors.items():
        is_output = OUTPUT_MATRIX.fullmatch(name) is not None
        if is_output and np.array_equal(tensor.as_bfloat16(), rows):
            borrowed.append(name)
        elif tensor.dtype in ("F64", "F32", "F16", "BF16"):
            kept.append(spec_of(name, "BF16", tensor.as_bfloat16()))
        else:
            kept.append(spec_of(name, tensor.dtype, tensor.values()))
    return kept, tuple(borrowed), rows_digest(rows)
