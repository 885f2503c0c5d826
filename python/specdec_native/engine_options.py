"""Engine's options, checked and brought into the core's form."""

from __future__ import annotations

import math
import operator
from typing import Any

from specdec_native import _core
from specdec_native.checks import check_number

_SEED_MASK = 2**64 - 1


def make_config(**options: Any) -> _core.EngineConfig:
    """An EngineConfig from the options that are not None. Raises ValueError naming a wrong one."""
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _INTEGER_OPTIONS:
            value = _integer(name, value)  # noqa: PLW2901
            if value == 0 and name in _POSITIVE_OPTIONS:
                raise ValueError(f"{name} must be at least 1, or None for the default")
        elif name in _SWITCHES:
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        elif name == "gpu_memory_utilization":
            value = check_number(name, value)  # noqa: PLW2901
        elif not isinstance(value, str):
            raise ValueError(f"{name} must be a string, got {value!r}")
        fields[name] = value
    if "seed" in fields:
        fields["seed"] &= _SEED_MASK
    return _core.EngineConfig(**fields)


def dtype_name(dtype: Any) -> str:
    """The core's name for a dtype of any of vLLM's spellings, or a torch.dtype."""
    if dtype is None:
        return "auto"
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


def check_quantization(value: Any) -> None:
    """Raises ValueError unless `value` is None or names a quantization."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"quantization must be a string, got {value!r}")
    _core.check_quantization(value)


_INTEGER_OPTIONS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "num_kv_blocks",
    "block_size",
    "num_threads",
    "seed",
)
_POSITIVE_OPTIONS = ("max_num_seqs", "max_num_batched_tokens")  # where 0 means the core's default
_SWITCHES = ("enable_prefix_caching", "enforce_eager", "deterministic")
_DTYPES = {"float": "float32", "half": "float16"}


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)  # sizes are often written 4e9
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    limit = 2**63 if name in ("kv_cache_memory_bytes", "seed") else 2**31
    if name != "seed" and not -limit <= number < limit:
        raise ValueError(f"{name} must be below {limit}, got {number}")
    return number
