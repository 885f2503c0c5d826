"""A draft head or draft model as config.json and tensors, changed in memory and written again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.layout import SINGLE_FILE, safetensors_files
from specdec_native.checkpoints.safetensors_file import StoredTensor, open_checkpoint, spec_of
from specdec_native.checkpoints.safetensors_writer import float32_to_bfloat16, write_shard
from specdec_native.checkpoints.text_files import read_json_object

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_LAYERS = "transformer_layer_config"  # where speculators' files describe the layers
_WEIGHT_FILES = re.compile(r".*\.(safetensors|bin|pt)(\.index\.json)?|config\.json")
_NUMPY_FLOATS: Mapping[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """config.json and tensors; a change makes another Checkpoint and leaves the files alone.

    Attributes:
        directory: the folder that was read.
        config: the content of config.json.
        stored: the tensors as the files have them.
        changed: tensors in place of those stored, in float32 or as integers; None for one that is
            taken out.
    """

    directory: Path
    config: Mapping[str, Any]
    stored: Mapping[str, StoredTensor]
    changed: Mapping[str, Array | None] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """A directory with config.json and safetensors files. Raises CheckpointError."""
        config = read_json_object(directory / "config.json")
        return cls(directory, config, open_checkpoint(directory))

    # -- tensors

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return [name for name in self.stored if self.changed.get(name, 0) is not None] + [
            name
            for name, values in self.changed.items()
            if values is not None and name not in self.stored
        ]

    def ending(self, *ends: str) -> list[str]:
        """The names that are one of `ends`, or end in a dot and one of them."""
        return [n for n in self.names if any(n == end or n.endswith(f".{end}") for end in ends)]

    def find(self, *ends: str) -> str | None:
        """The first name of ending(), in the order of `ends`; None where there is none."""
        return next((name for end in ends for name in self.ending(end)), None)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's extents."""
        values = self.changed.get(name)
        return self.stored[name].shape if values is None else values.shape

    def is_float(self, name: str) -> bool:
        """Whether a tensor has floating-point numbers of 16 bits or more."""
        values = self.changed.get(name)
        return self.stored[name].is_float if values is None else values.dtype.kind == "f"

    def floats(self, name: str) -> Floats:
        """A tensor in float32."""
        values = self.changed.get(name)
        if values is not None:
            return values.astype(np.float32)
        return self.stored[name].as_float32(slice(None))

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """A tensor of integers or booleans, flat."""
        values = self.changed.get(name)
        found = self.stored[name].values() if values is None else values
        return np.array(found, np.int64).reshape(-1)

    # -- changes

    def with_tensors(self, tensors: Mapping[str, Array | None]) -> Checkpoint:
        """With other values of these tensors, or without those that are None."""
        return dataclasses.replace(self, changed={**self.changed, **tensors})

    def with_config(self, values: Mapping[str, Any], *, layers: bool = False) -> Checkpoint:
        """With other values of these keys of config.json; a key whose value is None is taken out.

        layers: the keys describe the layers, and lie in an inner object in speculators' files.
        """
        is_nested = layers and isinstance(self.config.get(_LAYERS), Mapping)
        old = self.layers if is_nested else self.config
        new = {key: value for key, value in {**old, **values}.items() if value is not None}
        return dataclasses.replace(self, config={**self.config, _LAYERS: new} if is_nested else new)

    @property
    def layers(self) -> Mapping[str, Any]:
        """The part of config.json that describes the layers."""
        nested = self.config.get(_LAYERS)
        return nested if isinstance(nested, Mapping) else self.config

    def write(self, directory: Path, *, link: bool = False) -> Path:
        """Writes the checkpoint to a directory, which is made, with the other files beside it.

        link: links of the file system where a file is unchanged, for a directory that lives no
            longer than this one.
        """
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config, indent=2) + "\n"
        (directory / "config.json").write_text(text, encoding="utf-8")
        place = os.symlink if link else shutil.copyfile
        for file in sorted(self.directory.iterdir()):
            if file.is_file() and not _WEIGHT_FILES.fullmatch(file.name):
                place(file.resolve(), directory / file.name)
        is_part = len(self.stored) < len(open_checkpoint(self.directory))
        if link and not self.changed and not is_part:
            for file in safetensors_files(self.directory):
                place(file.resolve(), directory / file.name)
            for file in self.directory.glob("*.safetensors.index.json"):
                place(file.resolve(), directory / file.name)
        else:
            specs = [spec_of(name, *self._to_store(name)) for name in self.names]
            write_shard(directory / SINGLE_FILE, specs)
        return directory

    def _to_store(self, name: str) -> tuple[str, Array]:
        values = self.changed.get(name)
        stored = self.stored.get(name)
        if values is None:
            return self.stored[name].dtype, self.stored[name].values()
        dtype = "F32" if stored is None else stored.dtype
        if stored is None and values.dtype.kind != "f":
            return "I64", values.astype(np.int64)
        if dtype == "BF16":
            return dtype, float32_to_bfloat16(values.astype(np.float32))
        kind = _NUMPY_FLOATS.get(dtype, None if stored is None else stored.values().dtype)
        return dtype, values.astype(kind)


@dataclasses.dataclass(frozen=True)
class Target:
    """What is compared with the target's checkpoint.

    Attributes:
        checkpoint: its files.
        config: its config.json; the fields of its part for text are beside the rest.
    """

    checkpoint: Checkpoint
    config: Mapping[str, Any]

    @classmethod
    def read(cls, directory: Path) -> Target:
        """Raises CheckpointError."""
        checkpoint = Checkpoint.read(directory)
        text = checkpoint.config.get("text_config")
        return cls(checkpoint, {**checkpoint.config, **(text if isinstance(text, Mapping) else {})})

    @property
    def num_layers(self) -> int:
        """Layers; 0 where config.json does not say."""
        return _count(self.config.get("num_hidden_layers"))

    @property
    def hidden_size(self) -> int:
        """Elements of a hidden state; 0 where config.json does not say."""
        return _count(self.config.get("hidden_size"))

    @property
    def vocab_size(self) -> int:
        """Tokens; 0 where config.json does not say."""
        return _count(self.config.get("vocab_size"))

    @property
    def embedding(self) -> Floats | None:
        """[vocabulary, hidden size]; None where it is quantised or has another name."""
        return self._matrix("embed_tokens.weight", "embed_in.weight")

    @property
    def lm_head(self) -> Floats | None:
        """[vocabulary, hidden size]; None where it is quantised or has another name."""
        return self._matrix("lm_head.weight", "embed_out.weight", "embed_tokens.weight")

    @property
    def norm_offset(self) -> float:
        """What is added to the stored weights of norms before they multiply: 1 or 0."""
        kind = str(self.config.get("model_type"))
        is_gemma = kind in ("gemma", "gemma2", "gemma3", "gemma3_text")
        return 1.0 if is_gemma or kind.startswith(("qwen3_next", "qwen3_5")) else 0.0

    @property
    def norm(self) -> Floats | None:
        """What the final norm multiplies by, [hidden size]; None where it has another name."""
        for name in self.checkpoint.ending("norm.weight"):
            if name in ("norm.weight", "model.norm.weight", "model.language_model.norm.weight"):
                return self.checkpoint.floats(name) + np.float32(self.norm_offset)
        return None

    def _matrix(self, *ends: str) -> Floats | None:
        name = self.checkpoint.find(*ends)
        if name is None or not self.checkpoint.is_float(name):
            return None
        matrix = self.checkpoint.floats(name)
        return matrix if matrix.shape[1:] == (self.hidden_size,) else None


def parts(matrix: Floats, width: int, axis: int = -1) -> Iterator[Floats]:
    """A matrix cut into pieces of `width` columns, or along another axis."""
    yield from np.split(matrix, math.ceil(matrix.shape[axis] / width), axis)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
