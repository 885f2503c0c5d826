"""Gives a head the weights of an existing one of the same method and shape."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.head_methods import METHODS
from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.heads.configs import TAPS
from specdec_lab.training.heads.eagle3 import NORM_FLAGS
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.draft_config import read_draft_config
from specdec_native.checkpoints.head_files import scored_tokens
from specdec_native.checkpoints.layout import safetensors_files
from specdec_native.checkpoints.safetensors_file import open_checkpoint
from specdec_native.checkpoints.text_files import read_json_object

# What a head computes depends on these keys of config.json.
_SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "hidden_act"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta"),
    *("medusa_num_layers", "inner_dim", "n_predict", "tie_weights", "scale_input"),
    *("mask_token_id", "bias", "attention_bias", "mlp_bias", TAPS, *NORM_FLAGS),
)
_LAYER_CONFIG = "transformer_layer_config"  # speculators' config.json nests a layer's keys


def start_from(head: TrainableHead, method: str, source: str | os.PathLike[str]) -> None:
    """Copies the weights of a head that train_head() or another trainer wrote, in any layout.

    The tokens that the head scores may be others than those of `source`: rows that it lacks keep
    their first values. Matrices that `source` borrows from its target keep theirs, too.

    Args:
        head: has its first weights.
        method: one of METHODS.
        source: a directory or the name of a known head.

    Raises TrainingError naming what differs where `source` is of another method or shape, and what
    hub.resolve_model raises where there is no such head.
    """
    directory = hub.resolve_model(source)
    found = read_draft_config(directory).method
    wanted = str(METHODS[method].speculative["method"])
    if found != wanted:
        raise _unfit(
            directory, f"its method is {found or 'unknown'}, that of the training {method}"
        )
    _check_shape(head, directory)
    ids = scored_tokens(open_checkpoint(directory), len(head.target.lm_head))
    tensors: dict[str, Tensor] = {}
    for file in safetensors_files(directory):
        tensors |= {name: tensor.float() for name, tensor in load_file(file).items()}
    parameters = dict(head.named_parameters())
    given = head.weights_of(tensors, torch.from_numpy(ids))
    missing = [name for name in parameters if name not in given]
    unknown = [name for name in given if name not in parameters]
    for names, verb in ((missing, "lacks"), (unknown, "has also")):
        if names:
            raise _unfit(directory, f"it {verb} {', '.join(names[:4])}")
    for name, tensor in given.items():
        if tensor.shape != parameters[name].shape:
            raise _unfit(
                directory,
                f"{name} is {list(tensor.shape)}, that of the training "
                f"{list(parameters[name].shape)}",
            )
    with torch.no_grad():
        for name, tensor in given.items():
            parameters[name].copy_(tensor)


def _check_shape(head: TrainableHead, directory: Path) -> None:
    theirs = _flat(read_json_object(directory / "config.json"))
    mine = {**dict.fromkeys(NORM_FLAGS, False), **_flat(head.files("common").config)}
    for key in _SHAPE:
        if key in theirs and key in mine and theirs[key] != mine[key]:
            raise _unfit(directory, f"{key} is {theirs[key]}, that of the training {mine[key]}")


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    nested = config.get(_LAYER_CONFIG)
    return {**config, **(nested if isinstance(nested, Mapping) else {})}


def _unfit(directory: Path, difference: str) -> TrainingError:
    return TrainingError(
        f"start_from: this head has another method or shape than the one to be trained: "
        f"{difference}; give the options that it was trained with, or another head",
        directory,
    )
