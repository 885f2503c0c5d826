"""What a head's tensors say by themselves: broken, empty or never trained."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from specdec_lab.doctor.checkpoint import Checkpoint, Floats
from specdec_lab.doctor.findings import Finding, fault, note
from specdec_lab.doctor.readings.norms import norms_of

_TABLES = ("embed", "emb.", "lm_head", "head.", "markov", "confidence")
"""Parts of the names of matrices whose rows stand for tokens, or that do not draft."""

_SAMPLE = 512  # rows and columns of a matrix that are looked at for noise
_LEAST_SIDE = 128  # a smaller matrix may look like noise although it was trained for a while
_SIGMAS = 5.0
_MOST_EMPTY_ROWS = 0.05


def check_tensors(head: Checkpoint) -> list[Finding]:
    """What is wrong with single tensors, and with all of them."""
    findings: list[Finding] = []
    noise: list[str] = []
    matrices = 0
    for name in head.names:
        if not head.is_float(name):
            continue
        values = head.floats(name)
        broken = _broken(name, values)
        findings += broken
        if broken or values.ndim != 2 or _is_table(name):
            continue
        matrices += 1
        if is_noise(values):
            noise.append(name)
    if noise:
        findings.append(_of_noise(noise, matrices))
    norms = norms_of(head)
    if norms and all((head.floats(name) == 1).all() for name in norms):
        findings.append(
            note(
                "norms",
                f"all {len(norms)} norms have weights of exactly 1, as before any training; "
                "training in bfloat16 by small steps leaves them so, too",
            )
        )
    return findings


def _is_table(name: str) -> bool:
    return any(part in name for part in _TABLES)


def _broken(name: str, values: Floats) -> list[Finding]:
    wrong = values.size - int(np.isfinite(values).sum())
    if wrong:
        return [
            fault(
                name,
                f"{wrong} of its {values.size} values are NaN or infinite",
                "the file is damaged, or training diverged: take an earlier checkpoint",
                is_final=True,
            )
        ]
    if values.size and not values.any() and "bias" not in name:
        return [
            fault(
                name, "all its values are zero",
                "the tensor was never written or never trained: take another checkpoint",
            )
        ]  # fmt: skip
    if values.ndim == 2 and not _is_table(name):
        empty = float((~values.any(axis=1)).mean())
        if empty > _MOST_EMPTY_ROWS:
            return [
                fault(
                    name,
                    f"{empty:.0%} of its rows are zero",
                    "a part of the tensor was never written: take another checkpoint",
                )
            ]
    return []


def _of_noise(names: list[str], matrices: int) -> Finding:
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    text = (
        "independent random numbers by their singular values and by the spread of their rows and "
        "columns, as before any training"
    )
    if len(names) == matrices:
        return fault(
            "all matrices",
            f"{listed} are {text}: the head was never trained",
            "give the trained checkpoint, or train the head (specdec-native train-head)",
            is_final=True,
        )
    return fault(
        listed,
        f"{text}: training did not reach this, or whoever saved it filled it anew",
        "take the tensor from the trainer's own checkpoint, or train on (train-head --start-from)",
    )


def is_noise(matrix: Floats) -> bool:
    """Whether a matrix looks like independent numbers of one distribution, as initialised ones do.

    Of m x n such numbers with standard deviation s, the largest singular value is s (sqrt(m) +
    sqrt(n)), the edge of Marchenko and Pastur's law, within a few n**(-2/3) of it; and the mean
    squares of rows and columns differ from each other no more than chance makes them. Training
    makes directions that stand out and rows that are longer than others.
    """
    sample = _sample(matrix).astype(np.float64)
    rows, columns = sample.shape
    if min(rows, columns) < _LEAST_SIDE:
        return False
    sample -= sample.mean()
    variance = float(sample.var())
    if variance == 0:
        return False
    edge = math.sqrt(variance) * (math.sqrt(rows) + math.sqrt(columns))
    largest = math.sqrt(float(np.linalg.eigvalsh(_gram(sample))[-1]))
    if largest > edge * (1 + _SIGMAS * min(rows, columns) ** (-2 / 3) / 2):
        return False
    spread = float((sample**4).mean()) / variance**2 - 1  # of the squares, over their mean
    return all(
        _is_chance(squares, spread / others)
        for squares, others in (
            ((sample**2).mean(1) / variance, columns),
            ((sample**2).mean(0) / variance, rows),
        )
    )


def _is_chance(means: npt.NDArray[np.float64], expected: float) -> bool:
    """Whether the variance of some means is what it is among independent ones."""
    ratio = float(means.var(ddof=1)) / expected
    return abs(ratio - 1) < _SIGMAS * math.sqrt(2 / (len(means) - 1))


def _gram(sample: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    product: npt.NDArray[np.float64]
    product = sample @ sample.T if len(sample) <= sample.shape[1] else sample.T @ sample
    return product


def _sample(matrix: Floats) -> Floats:
    """Some rows and columns, evenly spread."""
    picks = [np.unique(np.linspace(0, n - 1, min(n, _SAMPLE)).astype(int)) for n in matrix.shape]
    sample: Floats = matrix[np.ix_(*picks)]
    return sample
