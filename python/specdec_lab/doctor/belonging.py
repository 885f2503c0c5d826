"""Whether a head was made for this method and this target, by its files alone.

Sizes, vocabularies and tokenizers that differ are refused by the engine, whose words are reported.
"""

from __future__ import annotations

import json

import numpy as np

from specdec_lab.doctor.checkpoint import Checkpoint, Floats, Target
from specdec_lab.doctor.findings import Finding, fault, note

_OTHER_MODEL = 0.2  # mean cosine of two tables' rows, below which they have nothing in common
_ROWS = 2048  # of a table that are compared
# A name that only heads of a method have, the most telling first.
_SIGNS = (
    ("markov_head.markov_w1.weight", "dspark"),
    ("hidden_norm.weight", "eagle3"),
    ("emb.0.weight", "mlp_speculator"),
    ("blocks.0.layers.0.weight", "medusa"),
    ("0.0.linear.weight", "medusa"),
    ("fc.weight", "eagle"),
)
_LIKE = {"eagle3": ("eagle3", "dflash", "dspark"), "eagle": ("eagle", "mtp")}


def check_belonging(head: Checkpoint, target: Target, method: str) -> list[Finding]:
    """What speaks for another method, or for another target's weights."""
    findings = []
    said = next((kind for name, kind in _SIGNS if head.find(name) is not None), method)
    if method not in _LIKE.get(said, (said,)):
        findings.append(
            fault(
                "method",
                f'its tensors are those of "{said}", and it is run as "{method}"',
                f'give --spec-method {said}, or "method": "{said}" in speculative_config',
            )
        )
    provenance = head.directory / "specdec_provenance.json"
    if provenance.is_file() and not json.loads(provenance.read_text()).get(
        "trained_with_these_rows", True
    ):
        findings.append(
            note("target", "its LM head is not the one that the head was trained with, bit for bit")
        )
    for name, table, what in (
        ("embed_tokens.weight", target.embedding, "the target's embedding"),
        ("lm_head.weight", target.lm_head, "the target's rows of the same tokens"),
    ):
        alike = _likeness(head, name, table)
        if alike is not None and alike < _OTHER_MODEL:
            findings.append(
                note(
                    head.find(name) or name,
                    f"its rows are unlike {what} (mean cosine {alike:.2f}): it was trained from "
                    "nothing, or is another model's",
                )
            )
    return findings


def _likeness(head: Checkpoint, name: str, table: Floats | None) -> float | None:
    """The mean cosine of a head's rows and the target's for the same tokens; None: incomparable."""
    found, mapped = head.find(name), head.find("d2t")
    if found is None or table is None or len(head.shape(found)) != 2:
        return None
    rows, width = head.shape(found)
    ids = np.arange(rows)
    if name == "lm_head.weight" and mapped is not None:
        ids += head.integers(mapped)
    if width != table.shape[1] or len(ids) != rows or ids.min() < 0 or ids.max() >= len(table):
        return None
    picks = np.unique(np.linspace(0, rows - 1, min(rows, _ROWS)).astype(int))
    own, other = head.floats(found)[picks].astype(np.float64), table[ids[picks]]
    lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(other, axis=1)
    used = lengths > 0
    return float(((own * other).sum(1)[used] / lengths[used]).mean()) if used.any() else None
