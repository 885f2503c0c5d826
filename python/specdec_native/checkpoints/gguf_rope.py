"""Rotary positions of GGUF files: `rope_scaling` of config.json."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.gguf_file import GgufFile

# How Llama 3.1 and later stretch the rotary embedding. A GGUF file keeps the resulting divisors
# (rope_freqs.weight) and the factor is the largest of them; these parameters are the same
# throughout the family.
_LLAMA3_LOW_FREQ_FACTOR = 1.0
_LLAMA3_HIGH_FREQ_FACTOR = 4.0
_LLAMA3_ORIGINAL_CONTEXT = 8192


def rope_theta(file: GgufFile, absent: float = 10000.0) -> float:
    """The base of the rotary frequencies."""
    return shortest(file.hyperparameter("rope.freq_base", absent))


def rotary_scaling(file: GgufFile) -> dict[str, Any] | None:
    """The value of rope_scaling, None where positions are not scaled."""
    divisors = file.vector("rope_freqs.weight")
    if divisors is not None:
        return _llama3_scaling(file, divisors)
    # Before rope.scaling.* there was one key for the linear factor.
    legacy_factor = file.hyperparameter("rope.scale_linear", 0.0)
    kind = file.hyperparameter("rope.scaling.type", "linear" if legacy_factor else "none")
    factor = shortest(file.hyperparameter("rope.scaling.factor", legacy_factor))
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn_scaling(file, factor)
    raise file.error(
        f"metadata {file.architecture}.rope.scaling.type is {kind!r}; "
        "supported: none, linear, yarn, and the Llama 3 scaling as the tensor rope_freqs.weight"
    )


def _yarn_scaling(file: GgufFile, factor: float) -> dict[str, Any]:
    original = file.require_hyperparameter("rope.scaling.original_context_length", int)
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for key in ("beta_fast", "beta_slow"):
        value = file.hyperparameter(f"rope.scaling.yarn_{key}", kind=float)
        if value is not None:
            scaling[key] = shortest(value)
    derived = 0.1 * math.log(factor) + 1.0
    # llama.cpp derives the attention factor even where a file has what config.json says of it.
    stated = file.hyperparameter("rope.scaling.yarn_attn_factor", 0.0)
    if stated not in (0.0, 1.0) and not math.isclose(stated, derived, rel_tol=1e-4):
        raise file.error(
            f"metadata {file.architecture}.rope.scaling.yarn_attn_factor is {stated}; known is "
            f"only {derived:.6g}, which follows from the factor {factor}"
        )
    multiplier = file.hyperparameter("rope.scaling.yarn_log_multiplier", 0.0)
    if multiplier:
        scaling |= {"mscale": 1.0, "mscale_all_dim": shortest(multiplier)}
    # In a GGUF file the attention factor multiplies the derived one; in config.json it replaces it.
    attention_factor = float(file.hyperparameter("rope.scaling.attn_factor", 1.0))
    if attention_factor != 1.0 and multiplier:
        raise file.error(
            f"{file.architecture}.rope.scaling has attn_factor and yarn_log_multiplier, which is "
            "one too many"
        )
    if attention_factor != 1.0:
        scaling["attention_factor"] = attention_factor * derived
    return scaling


def _llama3_scaling(file: GgufFile, divisors: npt.NDArray[np.float64]) -> dict[str, Any] | None:
    if np.all(divisors == 1.0):
        return None
    factor = float(divisors.max())
    theta = rope_theta(file)
    expected = llama3_divisors(factor, theta, divisors.size)
    if not np.allclose(divisors, expected, rtol=1e-4, atol=0.0):
        raise file.error(
            "tensor rope_freqs.weight is not the Llama 3 scaling (low_freq_factor "
            f"{_LLAMA3_LOW_FREQ_FACTOR}, high_freq_factor {_LLAMA3_HIGH_FREQ_FACTOR}, original "
            f"context {_LLAMA3_ORIGINAL_CONTEXT}), the only one supported"
        )
    return {
        "rope_type": "llama3",
        "factor": shortest(factor),
        "low_freq_factor": _LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": _LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
    }


def llama3_divisors(factor: float, theta: float, num_frequencies: int) -> npt.NDArray[np.float64]:
    """What Llama 3.1's rule divides each rotary frequency by. [num_frequencies]

    Wavelengths under original/high keep their frequency, those over original/low are slowed by
    `factor`, and between the two the frequency is interpolated.
    """
    frequencies = theta ** (-np.arange(num_frequencies) / num_frequencies)
    turns_in_original_context = _LLAMA3_ORIGINAL_CONTEXT * frequencies / (2.0 * math.pi)
    kept = (turns_in_original_context - _LLAMA3_LOW_FREQ_FACTOR) / (
        _LLAMA3_HIGH_FREQ_FACTOR - _LLAMA3_LOW_FREQ_FACTOR
    )
    kept = np.clip(kept, 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1.0 / (kept + (1.0 - kept) / factor)
    return divisors


def longrope_scaling(
    file: GgufFile, num_factors: int, absent_scale: float | None = None
) -> dict[str, Any] | None:
    """The value of rope_scaling for Phi's two lists of divisors; None where there are none.

    absent_scale: the attention factor of files that have none; None: they are refused.
    """
    lists: dict[str, Any] = {}
    for kind in ("short", "long"):
        factors = file.vector(f"rope_factors_{kind}.weight")
        if factors is not None and factors.size != num_factors:
            raise file.error(
                f"tensor rope_factors_{kind}.weight has {factors.size} values, expected "
                f"{num_factors}, half of the rotated part of a head"
            )
        if factors is not None:
            lists[f"{kind}_factor"] = [shortest(factor) for factor in factors]
    if not lists:
        return None
    if len(lists) != 2:
        raise file.error("of rope_factors_short.weight and rope_factors_long.weight one is missing")
    if absent_scale is None:
        scale = file.require_hyperparameter("rope.scaling.attn_factor", float)
    else:
        scale = file.hyperparameter("rope.scaling.attn_factor", absent_scale)
    return {"rope_type": "longrope", **lists, "attention_factor": shortest(scale)}


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
