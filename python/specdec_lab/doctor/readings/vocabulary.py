"""Which tokens a head's rows stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from specdec_lab.doctor.checkpoint import Checkpoint, Floats, Target
from specdec_lab.doctor.reading import Reading, Variant
from specdec_native.checkpoints.head_files import OUTPUT_MATRIX

Ids = npt.NDArray[np.int64]

_WITH_D2T = frozenset({"eagle3", "dflash", "dspark"})
_ALIKE = 0.5  # cosine above which two rows are taken for the same token's
_MOST_ALIKE = 0.9  # share of rows that must find one
_ROWS_AT_ONCE = 1024


def _as_offsets(ids: Ids) -> Ids:
    return ids - np.arange(len(ids))


def _are_tokens(ids: Ids, target: Target) -> bool:
    is_inside = bool(((ids >= 0) & (ids < target.vocab_size)).all())
    return is_inside and len(np.unique(ids)) == len(ids)


def _other_maps(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """d2t holds offsets; some files hold ids, offsets the other way, or another head's."""
    name = head.find("d2t")
    if name is None:
        return
    stored = head.integers(name)
    marks = head.find("t2d")
    marked = np.zeros(0, np.int64) if marks is None else np.flatnonzero(head.integers(marks))
    choices = {
        "ids": (stored, "token ids, where offsets belong: subtract each entry's index"),
        "index less id": (np.arange(len(stored)) - stored, "index less token id: negate d2t"),
        "t2d's tokens": (
            marked,
            "another head's: write the tokens that t2d marks, less each entry's index",
        ),
        "tokens in rising order": (
            np.sort(stored + np.arange(len(stored))),
            "a shuffled list of tokens: order the tokens by their ids, and subtract the index",
        ),
    }
    seen = [stored + np.arange(len(stored))]
    for label, (ids, advice) in choices.items():
        known = any(np.array_equal(ids, other) for other in seen)
        if known or len(ids) != len(stored) or not _are_tokens(ids, target):
            continue
        seen.append(ids)
        yield Variant(f"d2t: {label}", f"d2t holds {advice}", _with_map(head, name, ids, target))


def _with_map(head: Checkpoint, name: str, ids: Ids, target: Target) -> Checkpoint:
    changed: dict[str, npt.NDArray[np.int64]] = {name: _as_offsets(ids)}
    marks = head.find("t2d")
    if marks is not None:
        changed[marks] = np.isin(np.arange(target.vocab_size), ids).astype(np.int64)
    return head.with_tensors(changed)


def _map_by_rows(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """The map that pairs each row of the head's LM head with the target's row most like it."""
    name, matrix = head.find("d2t"), head.find("lm_head.weight")
    rows = target.lm_head
    if name is None or matrix is None or rows is None:
        return
    own = head.floats(matrix)
    ids = head.integers(name) + np.arange(len(own))
    if own.shape[1] != rows.shape[1] or not np.isfinite(own).all():
        return
    if _are_tokens(ids, target) and _cosines(own, rows[ids]).mean() > _ALIKE:
        return
    nearest, alike = nearest_rows(own, rows)
    if (alike > _ALIKE).mean() < _MOST_ALIKE or not _are_tokens(nearest, target):
        return
    yield Variant(
        "d2t: the target's rows that are alike",
        "d2t is another head's: write the tokens whose rows of the target's LM head are like the "
        "head's, less each entry's index",
        _with_map(head, name, nearest, target),
    )


def nearest_rows(rows: Floats, table: Floats) -> tuple[Ids, Floats]:
    """For each row the index of the table's row with the greatest cosine, and this cosine."""
    unit = _normed(table)
    nearest, alike = [], []
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        scores = _normed(rows[begin : begin + _ROWS_AT_ONCE]) @ unit.T
        nearest.append(scores.argmax(1))
        alike.append(scores.max(1))
    return np.concatenate(nearest), np.concatenate(alike)


def _normed(rows: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-20), np.float32)


def _cosines(a: Floats, b: Floats) -> Floats:
    return np.asarray((_normed(a) * _normed(b)).sum(1), np.float32)


def _target_embedding(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """A head's own embedding may be another model's."""
    name = head.find("embed_tokens.weight")
    if name is None or head.shape(name)[-1] != target.hidden_size:
        return
    own, of_target = head.floats(name), target.embedding
    if of_target is not None and np.array_equal(own, of_target):
        return
    yield Variant(
        "the target's embedding",
        f"{name} is not what the head was trained with: take it out of the file, and the head uses "
        "the target's",
        head.with_tensors({name: None}),
    )


def _target_outputs(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """A head's own output matrix may be another model's, or in another order."""
    names = [name for name in head.names if OUTPUT_MATRIX.fullmatch(name)]
    if not names or any(head.shape(name)[-1] != target.hidden_size for name in names):
        return
    yield Variant(
        "the target's LM head",
        f"{names[0]} is not what the head was trained with: take it out of the file, and the head "
        "uses the target's rows",
        head.with_tensors(dict.fromkeys(names)),
    )


def _token_map(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """Medusa's token_map holds ids; a d2t under this name holds offsets."""
    name = head.find("token_map")
    if name is None:
        return
    ids = head.integers(name) + np.arange(len(head.integers(name)))
    if _are_tokens(ids, target):
        yield Variant(
            "token_map: offsets",
            "token_map holds offsets, where ids belong: add each entry's index",
            head.with_tensors({name: ids}),
        )


READINGS: Iterable[Reading] = (
    Reading("draft-vocabulary", _WITH_D2T, _other_maps),
    Reading("draft-vocabulary-by-rows", _WITH_D2T, _map_by_rows),
    Reading("token-map", frozenset({"medusa"}), _token_map),
    Reading("embedding", frozenset({"eagle", "eagle3", "dflash", "dspark"}), _target_embedding),
    Reading("lm-head", frozenset({"eagle3", "dflash", "dspark", "medusa"}), _target_outputs),
)
