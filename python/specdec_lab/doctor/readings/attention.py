"""How a head's layers rotate queries and keys, and which of two matrices is which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from specdec_lab.doctor.checkpoint import Array, Checkpoint, Floats, Target
from specdec_lab.doctor.reading import Reading, Variant

_OF_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
_BASES = (1e4, 1e5, 5e5, 1e6)  # of EAGLE's own files, SmolLM2, Llama 3 and Qwen
_WITH_LAYERS = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model"})


def _rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope's base, and how it is scaled, whichever of two spellings a config.json has."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = dict(rope) if isinstance(rope, Mapping) else {}
    rope["rope_type"] = rope.pop("type", rope.get("rope_type", "default"))
    rope["rope_theta"] = float(rope.get("rope_theta", config.get("rope_theta", _BASES[0])))
    return rope


def _other_ropes(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """The target's rope, the head's without its scaling, and the usual bases."""
    own, of_target = _rope_of(head.layers), _rope_of(target.config)
    if any(isinstance(value, Mapping) for value in (*own.values(), *of_target.values())):
        return  # a rope for each kind of layer
    plain = {"rope_type": "default", "rope_theta": own["rope_theta"]}
    choices = [("the target's rope", of_target), ("the rope without scaling", plain)]
    choices += [(f"rope_theta {base:g}", plain | {"rope_theta": base}) for base in _BASES]
    seen = [own]
    for label, rope in choices:
        if rope in seen:
            continue
        seen.append(rope)
        written = {"rope_theta": rope["rope_theta"], "rope_parameters": rope, "rope_scaling": None}
        yield Variant(
            label,
            f'write "rope_theta": {rope["rope_theta"]:g} and "rope_parameters": {rope} into '
            "config.json, in place of what it says of the rope",
            head.with_config(written, layers=True),
        )


def _head_dim(head: Checkpoint, target: Target) -> int:
    config = head.layers if head.layers.get("num_attention_heads") else target.config
    heads = config.get("num_attention_heads")
    size = config.get("head_dim") or (config.get("hidden_size") or 0) // (heads or 1)
    return size if isinstance(size, int) else 0


def _halves_of_pairs(rows: Floats, head_dim: int) -> Floats:
    """Rows that stand in pairs (0, 1), (2, 3), ... put into halves, head by head."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _pairs_of_halves(rows: Floats, head_dim: int) -> Floats:
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _rotated_pairs(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Rows of q and k in the order for rotating neighbours (Meta's, GGUF's) in place of halves."""
    size = _head_dim(head, target)
    names = head.ending("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias",
                        "q_norm.weight", "k_norm.weight")  # fmt: skip
    if not names or size < 2 or any(head.shape(n)[0] % size or size % 2 for n in names):
        return
    for order, label in ((_halves_of_pairs, "neighbours"), (_pairs_of_halves, "twice-cut halves")):
        yield Variant(
            f"q and k: rows are {label}",
            f"the rows of q_proj and k_proj stand in the order of {label}: within each head of "
            f"{size}, put them into the order of Hugging Face's files",
            head.with_tensors({name: order(head.floats(name), size) for name in names}),
        )


def _gates(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """gate_proj and up_proj have the same shape; files that joined them have both orders."""
    changed: dict[str, Array] = {}
    for gate in head.ending("mlp.gate_proj.weight"):
        up = gate.replace("gate_proj", "up_proj")
        if up in head:
            changed |= {gate: head.floats(up), up: head.floats(gate)}
    if changed:
        yield Variant(
            "gate_proj and up_proj exchanged",
            "mlp.gate_proj and mlp.up_proj have each other's weights: exchange them",
            head.with_tensors(changed),
        )


READINGS: Iterable[Reading] = (
    Reading("rope", _WITH_LAYERS - {"mtp"}, _other_ropes),
    Reading("rotated-pairs", _WITH_LAYERS, _rotated_pairs),
    Reading("gates", _WITH_LAYERS, _gates),
)
