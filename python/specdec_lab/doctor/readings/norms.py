"""Where a head normalises, and how the weights of norms are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from specdec_lab.doctor.checkpoint import Checkpoint, Target
from specdec_lab.doctor.reading import Reading, Variant

_FIRST_INPUT = "use_input_layernorm_in_first_layer"
_LAST = "use_last_layernorm"
_ALL = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model", "mlp_speculator"})
# Norms of what is joined: one of the embedding, one of the target's state.
_PAIRS = (
    ("input_layernorm.weight", "hidden_norm.weight"),
    ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"),
    ("enorm.weight", "hnorm.weight"),
    ("token_layernorm.weight", "hidden_layernorm.weight"),
    ("mtp_emb_norm.0.weight", "mtp_hidden_norm.0.weight"),
)


def norms_of(head: Checkpoint) -> list[str]:
    """The names of the weights of norms."""
    return [
        name
        for name in head.names
        if len(head.shape(name)) == 1
        and name.endswith(".weight")
        and ("norm" in name or name.startswith(("ln.", "speculator.ln.")))
        and head.is_float(name)
    ]


def says(head: Checkpoint, key: str) -> bool:
    """Whether config.json has a flag, at the top or in eagle_config."""
    nested = head.config.get("eagle_config")
    inner = nested.get(key) if isinstance(nested, Mapping) else None
    return bool(head.config.get(key, inner))


def _residual(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """speculators' trainer adds the first layer's output to normalised features by default, other
    trainers to the features as they are; a file may leave the flag out."""
    key = "norm_before_residual"
    is_speculators = "speculators_model_type" in head.config
    default = is_speculators and head.config.get("speculators_model_type") != "peagle"
    flag = not head.config.get(key, default)
    yield Variant(
        f"{key}: {str(flag).lower()}",
        f'write "{key}": {str(flag).lower()} into config.json',
        head.with_config({key: flag}),
    )


def _feedback(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """EAGLE-3.1 feeds back a draft's state after the final norm, EAGLE-3 before it. Only files of
    speculators are believed, since SpecForge writes the key for another thing."""
    is_speculators = "speculators_model_type" in head.config
    flag = not (is_speculators and bool(head.config.get("norm_output", False)))
    change: dict[str, object] = {"norm_output": flag}
    written = f'"norm_output": {str(flag).lower()}'
    if not is_speculators:
        change |= {
            "speculators_model_type": "eagle3",
            "norm_before_residual": bool(head.config.get("norm_before_residual", False)),
        }
        written += ' and "speculators_model_type": "eagle3"'
    yield Variant(
        f"norm_output: {str(flag).lower()}", f"write {written} into config.json",
        head.with_config(change),
    )  # fmt: skip


def _before_fusion(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """A head has the norms before its fusion that its tensors have."""
    whole = head.find("input_norm.weight") is not None
    each = head.find("fc_norm.0.weight") is not None
    wanted = {"norm_before_fc": whole, "fc_norm": each}
    changed = {key: flag for key, flag in wanted.items() if says(head, key) != flag}
    if not changed:
        return
    missing = [key for key, flag in changed.items() if not flag]
    written = ", ".join(f'"{key}": {str(flag).lower()}' for key, flag in changed.items())
    nested = head.config.get("eagle_config")
    inner = {k: v for k, v in nested.items() if k not in missing} if nested else None
    yield Variant(
        f"norms before fc: {' and '.join(k for k, v in wanted.items() if v) or 'none'}",
        f"write {written} into config.json, as the head's tensors are",
        head.with_config({**changed, "eagle_config": inner}),
    )


def _ends_of_eagle(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """EAGLE-1 lacks the first layer's input norm and the final one; ModelOpt's heads may not."""
    for key, name in ((_FIRST_INPUT, "input_layernorm.weight"), (_LAST, "norm.weight")):
        flag = not head.config.get(key, False)
        if flag and head.find(f"layers.0.{name}" if key == _FIRST_INPUT else name) is None:
            continue
        yield Variant(
            f"{key}: {str(flag).lower()}",
            f'write "{key}": {str(flag).lower()} into config.json',
            head.with_config({key: flag}),
        )


def _offsets(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """Gemma and Qwen3.5 store norms less one, others do not."""
    names = norms_of(head)
    for offset, label in ((1.0, "less one"), (-1.0, "with one added")):
        if names:
            yield Variant(
                f"norms stored {label}",
                f"the weights of the norms are stored {label}: add {offset:+g} to each of them "
                f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})",
                head.with_tensors({name: head.floats(name) + offset for name in names}),
            )


def _exchanged(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """The norm of the embedding and that of the state have the same shape."""
    for first, second in _PAIRS:
        a, b = head.find(first), head.find(second)
        if a is None or b is None or head.shape(a) != head.shape(b) or _block(a) != _block(b):
            continue
        yield Variant(
            "norms of embedding and state exchanged",
            f"{a} and {b} have each other's weights: exchange them",
            head.with_tensors({a: head.floats(b), b: head.floats(a)}),
        )


def _block(name: str) -> str:
    """The names before a norm's own, of which numbered ones are alike."""
    stem = name.removesuffix(".weight").removesuffix(".0")
    return stem.rpartition(".")[0]


def _input_scale(head: Checkpoint, _: Target) -> Iterator[Variant]:
    """IBM's speculators normalise the target's state, or do not."""
    flag = not head.config.get("scale_input", False)
    yield Variant(
        f"scale_input: {str(flag).lower()}",
        f'write "scale_input": {str(flag).lower()} into config.json',
        head.with_config({"scale_input": flag}),
    )


def _only(*methods: str) -> frozenset[str]:
    return frozenset(methods)


READINGS: Iterable[Reading] = (
    Reading("residual", _only("eagle3"), _residual),
    Reading("feedback", _only("eagle3"), _feedback),
    Reading("norms-before-fc", _only("eagle3"), _before_fusion),
    Reading("norms-of-eagle", _only("eagle"), _ends_of_eagle),
    Reading("input-scale", _only("mlp_speculator"), _input_scale),
    Reading("exchanged-norms", _only("eagle3", "mtp"), _exchanged),
    Reading("norm-offset", _ALL, _offsets),
)
