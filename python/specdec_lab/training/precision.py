"""Whether a machine multiplies faster in bfloat16 than in float32."""

from __future__ import annotations

import time

import torch

_SIZE = 1024
_RUNS = 4
_WORTH = 0.75  # bfloat16 must take less than this share of float32's time


def choose_dtype(name: str, device: torch.device) -> str:
    """The dtype that TrainingOptions.training_dtype means on a device; "auto" is measured."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    slow, fast = (_seconds(dtype) for dtype in (torch.float32, torch.bfloat16))
    return "bfloat16" if fast < _WORTH * slow else "float32"


def _seconds(dtype: torch.dtype) -> float:
    """Seconds of the fastest of some products on the CPU."""
    matrix = torch.ones(_SIZE, _SIZE, dtype=dtype)
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - begin)
    return min(times)
