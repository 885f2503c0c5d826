"""What a head reads of its target: which layers, in which order, and beside the embedding."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_lab.doctor.checkpoint import Array, Checkpoint, Target, parts
from specdec_lab.doctor.reading import Reading, Variant
from specdec_native.checkpoints.draft_config import DraftConfig

FUSIONS = ("fc.weight", "fusion_fc.weight", "eh_proj.weight", "input_proj.weight",
           "mtp_linear_proj.0.weight")  # fmt: skip
"""Ends of the names of the matrix that joins what a head reads."""

_TAPS = "eagle_aux_hidden_state_layer_ids"
_SPAN_OUTPUTS, _SPAN_INPUTS = "target_layer_ids", "aux_hidden_state_layer_ids"


def taps_of(head: Checkpoint, target: Target) -> list[int]:
    """The layers of the target whose inputs an EAGLE-3, DFlash or DSpark head reads, as the engine
    understands its config.json; empty where it is not known."""
    listed = DraftConfig(head.directory / "config.json", head.config).taps
    if listed is not None:
        return sorted(set(listed))
    for place in _span_places(head):
        for key, offset in ((_SPAN_INPUTS, 0), (_SPAN_OUTPUTS, 1)):
            ids = place.get(key)
            if isinstance(ids, list) and all(isinstance(layer, int) for layer in ids):
                return [layer + offset for layer in ids]
    layers = target.num_layers
    return sorted({2, layers // 2, layers - 3})


def num_taps(head: Checkpoint, target: Target) -> int:
    """How many states of the target the fusion reads; 0 where its width is no multiple of one."""
    name = head.find(*FUSIONS)
    width = 0 if name is None else head.shape(name)[-1]
    size = target.hidden_size
    return 0 if not size or width % size else width // size


def _span_places(head: Checkpoint) -> list[Mapping[str, Any]]:
    nested = head.config.get("dflash_config")
    return [nested, head.config] if isinstance(nested, Mapping) else [head.config]


def _with_taps(head: Checkpoint, layers: Sequence[int]) -> Checkpoint:
    """A head that reads the inputs of these layers, in its own format."""
    is_span = "dflash_config" in head.config or any(
        key in head.config for key in (_SPAN_INPUTS, _SPAN_OUTPUTS, "mask_token_id")
    )
    if not is_span:
        nested = head.config.get("eagle_config")
        rest = {k: v for k, v in nested.items() if k != _TAPS} if isinstance(nested, dict) else None
        return head.with_config({_TAPS: list(layers), "eagle_config": rest})
    nested = head.config.get("dflash_config")
    inner: dict[str, Any] = dict(nested) if isinstance(nested, Mapping) else dict(head.config)
    offset = 0 if _SPAN_INPUTS in inner or _SPAN_INPUTS in head.config else 1
    key = _SPAN_OUTPUTS if offset else _SPAN_INPUTS
    ids = [layer - offset for layer in layers]
    return head.with_config({"dflash_config": {**nested, key: ids}} if nested else {key: ids})


def _other_layers(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Ids off by one, since some writers name a layer's input and others its output; and the
    layers that EAGLE-3 reads by default."""
    taps = taps_of(head, target)
    if num_taps(head, target) != len(taps):
        return
    layers = target.num_layers
    default = sorted({2, layers // 2, layers - 3})
    choices = {
        "ids name layers' outputs": [layer + 1 for layer in taps],
        "ids name layers' inputs": [layer - 1 for layer in taps],
        "the default layers": default if len(default) == len(taps) else taps,
    }
    seen = [taps]
    for label, chosen in choices.items():
        if chosen in seen or min(chosen) < 0 or max(chosen) > layers:
            continue
        seen.append(chosen)
        names = ", ".join(map(str, chosen))
        yield Variant(
            f"taps: {label}",
            f"the head reads the inputs of layers {names}: write {_written(head, chosen)} into "
            "config.json",
            _with_taps(head, chosen),
        )


def _written(head: Checkpoint, layers: Sequence[int]) -> str:
    mended = _with_taps(head, layers).config
    nested = mended.get("dflash_config")
    for place in (*([nested] if isinstance(nested, Mapping) else []), mended):
        for key in (_TAPS, _SPAN_INPUTS, _SPAN_OUTPUTS):
            if key in place:
                return f'"{key}": {place[key]}'
    return ""


def _tap_orders(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Columns of the fusion that stand for the taps in another order."""
    name = head.find(*FUSIONS)
    count = num_taps(head, target)
    if name is None or count < 2:
        return
    for order in _orders(count):
        written = ", ".join(str(i + 1) for i in order)
        yield Variant(
            f"fc: taps in the order {written}",
            f"the columns of {name} stand for the taps in the order {written}, counted from the "
            "lowest layer: order them by layer",
            _reordered(head, name, order, target.hidden_size),
        )


def _orders(count: int) -> list[tuple[int, ...]]:
    """Every order of two or three taps but the rising one; of more, the usual mistakes."""
    if count <= 3:
        return list(itertools.permutations(range(count)))[1:]
    return [tuple(reversed(range(count))), (*range(1, count), 0), (count - 1, *range(count - 1))]


def _reordered(head: Checkpoint, name: str, order: Sequence[int], size: int) -> Checkpoint:
    """The piece of the i-th tap lies at order[i] and comes to i, in all that has such pieces."""
    changed: dict[str, Array] = {}
    for piece in (name, *head.ending("input_norm.weight", "mask_hidden")):
        found = list(parts(head.floats(piece), size))
        changed[piece] = np.concatenate([found[i] for i in order], -1)
    norms = [head.find(f"fc_norm.{i}.weight") for i in range(len(order))]
    for i, source in enumerate(order):
        own, other = norms[i], norms[source]
        if own is not None and other is not None:
            changed[own] = head.floats(other)
    return head.with_tensors(changed)


def _embedding_and_state(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Columns of the fusion with the target's state before the embedding, or behind it."""
    name = head.find(*FUSIONS)
    if name is None or num_taps(head, target) != 2:
        return
    yield Variant(
        "fc: embedding and state exchanged",
        f"{name} was trained for the embedding and the target's state in the other order: exchange "
        "the halves of its columns",
        head.with_tensors({name: np.roll(head.floats(name), target.hidden_size, -1)}),
    )


def _embedding_scale(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Gemma multiplies embeddings by the root of the hidden size, and not every head does."""
    name = head.find(*FUSIONS)
    if name is None or not str(target.config.get("model_type")).startswith("gemma"):
        return
    size = target.hidden_size
    for factor, label in ((size**0.5, "scaled"), (size**-0.5, "not scaled")):
        matrix = head.floats(name).copy()
        matrix[:, :size] *= factor
        yield Variant(
            f"embedding {label}",
            f"the head was trained on embeddings that are {label} as the target's are: multiply "
            f"the first {size} columns of {name} by {factor:.6g}",
            head.with_tensors({name: matrix}),
        )


def _methods(*names: str) -> frozenset[str]:
    return frozenset(names)


READINGS: Iterable[Reading] = (
    Reading("tapped-layers", _methods("eagle3", "dflash", "dspark"), _other_layers),
    Reading("order-of-taps", _methods("eagle3", "dflash", "dspark"), _tap_orders),
    Reading("embedding-and-state", _methods("eagle", "mtp"), _embedding_and_state),
    Reading("embedding-scale", _methods("eagle"), _embedding_scale),
)
