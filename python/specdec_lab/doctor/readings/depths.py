"""Which token a head's output stands for: depths of heads, rows of spans, masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_lab.doctor.checkpoint import Array, Checkpoint, Target
from specdec_lab.doctor.reading import Reading, Variant

_MEDUSA = re.compile(r"((?:medusa_heads\.)?(?:blocks\.|lm_heads\.)?)(\d+)(\..*)")
_LAYER = re.compile(r"(medusa_heads\.)?(blocks\.\d+\.layers\.\d+|\d+\.\d+\.linear)\.weight")
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")
_SPANS = frozenset({"dflash", "dspark"})


def setting(head: Checkpoint, key: str) -> Any:
    """A setting of a span, which lies in dflash_config or at the top of config.json."""
    nested = head.config.get("dflash_config")
    inner = nested.get(key) if isinstance(nested, Mapping) else None
    return head.config.get(key) if inner is None else inner


def with_setting(head: Checkpoint, key: str, value: Any) -> Checkpoint:
    """A head with another value of such a setting."""
    nested = head.config.get("dflash_config")
    if isinstance(nested, Mapping):
        return head.with_config({"dflash_config": {**nested, key: value}})
    return head.with_config({key: value})


def _anchor(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """A row gives the token of its position (DFlash) or the one after (DSpark)."""
    names = " ".join([*map(str, head.config.get("architectures") or ()),
                      str(head.config.get("speculators_model_type"))])  # fmt: skip
    given = setting(head, "sample_from_anchor")
    flag = not (given if given is not None else "dspark" in names.lower())
    which = "the token after its position" if flag else "the token of its position"
    yield Variant(
        f"a row gives {which}",
        f'write "sample_from_anchor": {str(flag).lower()} into config.json',
        with_setting(head, "sample_from_anchor", flag),
    )


def _block_size(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """Writers count the last token among the rows of a block, or do not."""
    size = setting(head, "block_size")
    if not isinstance(size, int):
        return
    for other in (size + 1, size - 1, 2 * size, size // 2):
        if other >= 3:
            yield Variant(
                f"block_size {other}",
                f'write "block_size": {other} into config.json',
                with_setting(head, "block_size", other),
            )


def _masks(head: Checkpoint, target: Target) -> Iterator[Variant]:
    """The mask token is any id that the trainer chose: usually a special or the last one."""
    key = next((key for key in _MASKS if isinstance(setting(head, key), int)), _MASKS[0])
    if not target.vocab_size:
        return
    choices = {f"{target.vocab_size - 1}": target.vocab_size - 1, "0": 0}
    for name in ("pad_token_id", "unk_token_id", "eos_token_id", "bos_token_id"):
        for config in (head.layers, target.config):
            if isinstance(config.get(name), int):
                choices.setdefault(str(config[name]), config[name])
    for token in choices.values():
        if token != setting(head, key) and 0 <= token < target.vocab_size:
            yield Variant(
                f"{key} {token}",
                f'write "{key}": {token} into config.json',
                with_setting(head, key, token),
            )


def _medusa_depths(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """The first head may be for the token that the target itself gives, or stand last."""
    names = {name: _MEDUSA.fullmatch(name) for name in head.names}
    numbers = sorted({int(m[2]) for m in names.values() if m is not None})
    count = len(numbers)
    if count < 2:
        return

    def moved(order: Sequence[int]) -> Checkpoint:
        """Head i is what was head order[i]; heads after the last are taken out."""
        changed: dict[str, Array | None] = {}
        for name, match in names.items():
            if match is None:
                continue
            i = int(match[2])
            source = f"{match[1]}{order[i]}{match[3]}" if i < len(order) else None
            if source is None or source in head:
                changed[name] = None if source is None else head.floats(source)
        keys = [key for key in ("num_heads", "medusa_num_heads") if key in head.config]
        return head.with_tensors(changed).with_config(dict.fromkeys(keys, len(order)))

    yield Variant(
        "heads begin one token later",
        "the first head drafts the token that the target itself gives: take it out, and number the "
        "others from 0",
        moved(numbers[1:]),
    )
    yield Variant(
        "heads in reverse order", "the heads stand in reverse order: number them from the last",
        moved(numbers[::-1]),
    )  # fmt: skip


def _transposed(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """Square matrices that were saved as [in, out]."""
    names = [name for name in head.names if _LAYER.fullmatch(name)]
    if names:
        changed = {name: np.ascontiguousarray(head.floats(name).T) for name in names}
        yield Variant(
            "layers transposed",
            f"the layers' matrices are stored as [in, out]: transpose {names[0]} and the others",
            head.with_tensors(changed),
        )


def _parallel(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """A head with features for masks drafts in one pass (P-EAGLE)."""
    is_parallel = head.config.get("speculators_model_type") == "peagle"
    if head.find("mask_hidden") is None or is_parallel:
        return
    yield Variant(
        "drafts in one pass",
        'the head is a P-EAGLE head: write "speculators_model_type": "peagle" into config.json',
        head.with_config({"speculators_model_type": "peagle"}),
    )


def _with_masks(head: Checkpoint, target: Target) -> Iterator[Variant]:
    if head.find("mask_hidden") is not None or any(key in head.config for key in _MASKS[1:]):
        yield from _masks(head, target)


READINGS: Iterable[Reading] = (
    Reading("anchor", _SPANS, _anchor),
    Reading("block-size", _SPANS, _block_size),
    Reading("mask-token", _SPANS, _masks),
    Reading("mask-token-of-parallel-heads", frozenset({"eagle3", "draft_model"}), _with_masks),
    Reading("one-pass", frozenset({"eagle3"}), _parallel),
    Reading("medusa-depths", frozenset({"medusa"}), _medusa_depths),
    Reading("transposed", frozenset({"medusa"}), _transposed),
)
