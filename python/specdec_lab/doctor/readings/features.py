"""What a head reads of its target: which layers, in which order, and beside the embedding."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from specdec_lab.doctor.checkpoint import Array, Checkpoint, Target, parts
from specdec_lab.doctor.reading import Reading, Variant
from specdec_lab.doctor.readings.depths import setting, with_setting
from specdec_native.checkpoints.draft_config import DraftConfig

FUSIONS = ("fc.weight", "fusion_fc.weight", "eh_proj.weight", "input_proj.weight",
           "mtp_linear_proj.0.weight")  # fmt: skip
"""Ends of the names of the matrix that joins what a head reads."""

_TAPS = "eagle_aux_hidden_state_layer_ids"
_SPAN_OUTPUTS, _SPAN_INPUTS = "target_layer_ids", "aux_hidden_state_layer_ids"


def _default_taps(target: Target) -> list[int]:
    layers = target.num_layers
    return sorted({2, layers // 2, layers - 3})


def _eagle_taps(head: Checkpoint, target: Target) -> list[int]:
    """The layers of the target whose inputs an EAGLE-3 head reads, as the engine understands its
    config.json."""
    listed = DraftConfig(head.directory / "config.json", head.config).taps
    return _default_taps(target) if listed is None else sorted(set(listed))


def num_taps(head: Checkpoint, target: Target) -> int:
    """How many states of the target the fusion reads; 0 where its width is no multiple of one."""
    name = head.find(*FUSIONS)
    width = 0 if name is None else head.shape(name)[-1]
    size = target.hidden_size
    return 0 if not size or width % size else width // size


def _eagle_layers(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Ids off by one, since some writers name a layer's input and others its output; and the
    layers that EAGLE-3 reads by default."""
    taps = _eagle_taps(head, target)
    for label, layers in _other_layers(taps, head, target):
        nested = head.config.get("eagle_config")
        rest = {k: v for k, v in nested.items() if k != _TAPS} if isinstance(nested, dict) else None
        yield Variant(
            f"taps: {label}",
            f'write "{_TAPS}": {layers} into config.json, at the top: the head reads the inputs of '
            "these layers",
            head.with_config({_TAPS: layers, "eagle_config": rest}),
        )


def _span_layers(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """The same of a DFlash or DSpark head, whose ids may lie in dflash_config."""
    for key, offset in ((_SPAN_INPUTS, 0), (_SPAN_OUTPUTS, 1)):
        ids = setting(head, key)
        if not isinstance(ids, list) or not all(isinstance(layer, int) for layer in ids):
            continue
        for label, layers in _other_layers([i + offset for i in ids], head, target):
            written = [layer - offset for layer in layers]
            yield Variant(
                f"taps: {label}",
                f'write "{key}": {written} into config.json: the head reads the inputs of layers '
                f"{', '.join(map(str, layers))}",
                with_setting(head, key, written),
            )
        return


def _other_layers(
    taps: list[int], head: Checkpoint, target: Target
) -> Iterator[tuple[str, list[int]]]:
    if num_taps(head, target) != len(taps):
        return
    default = _default_taps(target)
    choices = {
        "ids name layers' outputs": [layer + 1 for layer in taps],
        "ids name layers' inputs": [layer - 1 for layer in taps],
        "EAGLE-3's default layers": default if len(default) == len(taps) else taps,
    }
    seen = [taps]
    for label, layers in choices.items():
        if layers not in seen and min(layers) >= 0 and max(layers) <= target.num_layers:
            seen.append(layers)
            yield label, layers


def _before_final_norm(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """EAGLE-1 reads the target's last state after the final norm; some heads read it before."""
    layers = target.num_layers
    if not layers:
        return
    is_before = _TAPS in head.config
    change = "take {} out of config.json" if is_before else "write {} into config.json"
    written = f'"{_TAPS}": [{layers}]'
    which = "after" if is_before else "before"
    yield Variant(
        f"the target's state {which} its final norm",
        change.format(written),
        head.with_config({_TAPS: None if is_before else [layers]}),
    )


def _state_of_mtp(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """An MTP layer that reads the state on the other side of the target's final norm.

    The layer has a norm of its own for the state, so the weights of the target's norm can be
    multiplied into or out of that norm's weights; what each row's length does in between is taken
    as its mean.
    """
    name = head.find("pre_fc_norm_hidden.weight", "hnorm.weight", "hidden_layernorm.weight",
                     "mtp_hidden_norm.0.weight")  # fmt: skip
    norm = target.norm
    if name is None or norm is None or head.shape(name) != norm.shape:
        return
    own = head.floats(name) + target.norm_offset
    mean = float(np.sqrt((norm**2).mean()))
    is_after = "mtp_layers" not in name  # MiMo's is the one that reads the state before the norm
    factors = mean / norm if is_after else norm / mean
    side = "before" if is_after else "after"
    yield Variant(
        f"the target's state {side} its final norm",
        f"the layer was trained on the target's state {side} its final norm: "
        f"{'divide' if is_after else 'multiply'} {name} by that norm's weights over {mean:.4g}",
        head.with_tensors({name: own * factors - target.norm_offset}),
    )


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
    Reading("tapped-layers", _methods("eagle3"), _eagle_layers),
    Reading("tapped-layers-of-spans", _methods("dflash", "dspark"), _span_layers),
    Reading("final-norm", _methods("eagle"), _before_final_norm),
    Reading("final-norm-of-mtp", _methods("mtp"), _state_of_mtp),
    Reading("order-of-taps", _methods("eagle3", "dflash", "dspark"), _tap_orders),
    Reading("embedding-and-state", _methods("eagle", "mtp"), _embedding_and_state),
    Reading("embedding-scale", _methods("eagle"), _embedding_scale),
)
