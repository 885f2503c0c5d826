"""The parts of a target that draft heads borrow, read from its checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.layout import safetensors_files
from specdec_native.checkpoints.text_files import read_json_object

# Names in most families, in OPT and in GPT-NeoX. The first part is missing where a network was
# saved without its LM head.
_EMBEDDINGS = ("model.embed_tokens", "model.decoder.embed_tokens", "gpt_neox.embed_in")
_LM_HEADS = ("lm_head", "embed_out")
_NORMS = ("model.norm", "model.decoder.final_layer_norm", "gpt_neox.final_layer_norm")
_LAYERS = ("model.layers", "model.decoder.layers", "gpt_neox.layers")
_PROJECT_IN = ("model.decoder.project_in",)
_PROJECT_OUT = ("model.decoder.project_out",)

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclasses.dataclass(frozen=True)
class TargetWeights:
    """The target's weights that a head uses, in float32.

    Soft caps of logits are ignored: they do not change the order of tokens.

    Attributes:
        directory: the checkpoint's folder.
        config: its config.json.
        embedding: [vocabulary, hidden size], as stored, without a family's scale factor.
        lm_head: [vocabulary, hidden size], the LM head; the embedding where the two are tied.
        norm: the weights of the final norm, [hidden size]; ones where there is none.
        name: the target's name in a head's checkpoint.
    """

    directory: Path
    config: Mapping[str, Any]
    embedding: Tensor
    lm_head: Tensor
    norm: Tensor
    name: str

    @property
    def hidden_size(self) -> int:
        """Elements of a hidden state."""
        return self.embedding.shape[1]

    @property
    def norm_offset(self) -> float:
        """The number that is added to the stored weights of norms: 1 or 0."""
        return _norm_offset(self.config)

    @property
    def num_layers(self) -> int:
        """Layers of the target."""
        return int(self.config["num_hidden_layers"])

    @classmethod
    def load(cls, directory: Path, name: str | None = None) -> TargetWeights:
        """Reads a directory of safetensors files; `name` is the directory unless given.

        Raises CheckpointError where a part is missing or has a form that heads cannot read.
        """
        config = read_config(directory)
        files = _TensorFiles(directory)
        embedding_name = files.find(_EMBEDDINGS) or files.find(_LM_HEADS)
        if embedding_name is None:
            raise CheckpointError(
                f"there is no embedding: none of {', '.join(_EMBEDDINGS)}", directory
            )
        embedding = files.load(embedding_name)
        lm_head_name = files.find(_LM_HEADS)
        lm_head = embedding
        if lm_head_name not in (None, embedding_name):
            lm_head = files.load(lm_head_name)
        elif any(files.holds(f"{stem}.qweight") for stem in _LM_HEADS):
            raise CheckpointError(
                "the output head is quantized; train for the checkpoint that it was made from",
                directory,
            )
        projection = files.find(_PROJECT_OUT)
        if projection is not None:
            lm_head = lm_head @ files.load(projection)
        projection = files.find(_PROJECT_IN)
        if projection is not None:
            embedding = embedding @ files.load(projection).T
        if lm_head.shape != embedding.shape:
            raise CheckpointError(
                f"the embedding is {list(embedding.shape)} and the output head "
                f"{list(lm_head.shape)}",
                directory,
            )
        scale = float(config.get("logits_scaling") or 1.0)  # Granite's
        norm_name = files.find(_NORMS)
        norm = torch.ones(embedding.shape[1]) if norm_name is None else files.load(norm_name)
        return cls(
            directory=directory,
            config=config,
            embedding=embedding,
            lm_head=lm_head if scale == 1.0 else lm_head / scale,
            norm=norm + _norm_offset(config),
            name=name or str(directory.resolve()),
        )

    def to(self, device: torch.device | str) -> TargetWeights:
        """The same on another device."""
        embedding = self.embedding.to(device)
        lm_head = embedding if self.lm_head is self.embedding else self.lm_head.to(device)
        return dataclasses.replace(
            self, embedding=embedding, lm_head=lm_head, norm=self.norm.to(device)
        )

    def layer(self, index: int) -> dict[str, Tensor]:
        """The tensors of a layer by Llama's names within a layer, such as "mlp.up_proj.weight".

        Tensors that Llama does not have keep their family's names.
        """
        tensors: dict[str, Tensor] = {}
        for stem in _LAYERS:
            tensors |= self.tensors(f"{stem}.{index}.")
        if "pre_feedforward_layernorm.weight" in tensors:  # Gemma's; its other norms come after
            tensors["post_attention_layernorm.weight"] = tensors["pre_feedforward_layernorm.weight"]
        return {name: tensor for pair in tensors.items() for name, tensor in self._split(*pair)}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """All tensors whose names begin with `prefix`, by the rest of their names.

        Names may lack the first part of `prefix`. Norms are as they are multiplied: with the
        family's offset.
        """
        files = _TensorFiles(self.directory)
        tensors: dict[str, Tensor] = {}
        for begin in filter(None, (prefix, _without_first_part(prefix))):
            for name in files.names(begin):
                tensor = files.load(name)
                # The norm of recurrent layers has no offset.
                if "norm" in name and "linear_attn" not in name:
                    tensor = tensor + self.norm_offset
                tensors[name.removeprefix(begin)] = tensor
        return tensors

    def _split(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parts of a matrix that Phi-3 joined."""
        if name == "mlp.gate_up_proj.weight":
            gate, up = tensor.chunk(2)
            yield from (("mlp.gate_proj.weight", gate), ("mlp.up_proj.weight", up))
        elif name == "self_attn.qkv_proj.weight":
            heads = self.config["num_attention_heads"]
            kv_heads = self.config.get("num_key_value_heads") or heads
            head_dim = tensor.shape[0] // (heads + 2 * kv_heads)
            sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
            parts = torch.split_with_sizes(tensor, sizes)
            for part, rows in zip("qkv", parts, strict=True):
                yield f"self_attn.{part}_proj.weight", rows
        else:
            yield name, tensor


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a target; the fields of its part for text, if it has one, are beside the rest.

    Raises CheckpointError where it lacks a size that heads need.
    """
    file = directory / "config.json"
    config: dict[str, Any] = read_json_object(file)
    if isinstance(config.get("text_config"), dict):
        config |= config.pop("text_config")
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        size = config.get(key)
        if not isinstance(size, int) or size < 1:
            raise CheckpointError(f"{key}: {size!r} is not a number of at least 1", file)
    return config


def _norm_offset(config: Mapping[str, Any]) -> float:
    """The number to add to the weights of norms: 1 where weight - 1 is stored, else 0."""
    kind = str(config.get("model_type"))
    is_gemma = kind in ("gemma", "gemma2", "gemma3", "gemma3_text")
    return 1.0 if is_gemma or kind.startswith(("qwen3_next", "qwen3_5")) else 0.0


def _without_first_part(name: str) -> str:
    return name.partition(".")[2]


class _TensorFiles:
    """The tensors of a checkpoint's safetensors files, by their names in a checkpoint without
    images."""

    def __init__(self, directory: Path) -> None:
        self._file_of: dict[str, tuple[Path, str]] = {}  # and the name there
        for file in safetensors_files(directory):
            try:
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 - no dictionary
                        self._file_of[name.replace("language_model.", "", 1)] = file, name
            except (OSError, SafetensorError) as fault:
                raise CheckpointError(f"the file cannot be read ({fault})", file) from fault
        if not self._file_of:
            raise CheckpointError("there is no .safetensors file with tensors", directory)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._file_of if name.startswith(prefix)]

    def holds(self, name: str) -> bool:
        return name in self._file_of

    def find(self, stems: tuple[str, ...]) -> str | None:
        """The name of the first existing weight, with or without the first part of its stem."""
        for stem in stems:
            for name in (f"{stem}.weight", f"{_without_first_part(stem)}.weight"):
                if name in self._file_of:
                    return name
        return None

    def load(self, name: str) -> Tensor:
        file, stored_name = self._file_of[name]
        try:
            with safe_open(file, framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(stored_name)
        except (OSError, SafetensorError) as fault:
            raise CheckpointError(f"{name} cannot be read ({fault})", file) from fault
        if tensor.dtype not in _FLOATS:
            raise CheckpointError(
                f"{name} is of {str(tensor.dtype).removeprefix('torch.')}; train for a checkpoint "
                "in float32, float16 or bfloat16",
                file,
            )
        return tensor.float()
