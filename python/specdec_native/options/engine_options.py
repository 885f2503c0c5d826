"""Options of Engine that are the core's, checked and brought into its form.

The core has the table of them (cpp/include/specdec/config.h), from which scripts/write_options.py
writes engine_arguments.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_native import _core
from specdec_native.common.checks import check_number

OPTIONS: dict[str, _core.Option] = {option.name: option for option in _core.EngineConfig.options}

_SEED_MASK = 2**64 - 1
_DTYPES = {"float": "float32", "half": "float16"}
_NOT_ZERO = ("max_num_seqs", "max_num_batched_tokens")  # vLLM refuses 0 for these


def make_config(options: Mapping[str, Any]) -> _core.EngineConfig:
    """An EngineConfig from those of the core's options that are not None.

    Raises ValueError naming a wrong one.
    """
    config = _core.EngineConfig()
    for name, option in OPTIONS.items():
        value = options.get(name)
        if name == "dtype" and value is not None:  # of vLLM's spellings, or a torch.dtype
            value = str(value).removeprefix("torch.")
            value = _DTYPES.get(value, value)
        if value is not None:
            setattr(config, name, _checked(option, value))
    return config


def check_quantization(value: Any) -> None:
    """Raises ValueError unless `value` is None or names a quantization."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"quantization must be a string, got {value!r}")
    _core.check_quantization(value)


def parse_taps(taps: Sequence[Any]) -> tuple[list[int], bool]:
    """The layers of Engine's `taps`, and whether "final" comes after them."""
    given = list(taps) if isinstance(taps, Sequence) and not isinstance(taps, str) else None
    if not given:
        raise ValueError(f'taps must be a list such as [2, 15, 27, "final"], got {taps!r}')
    has_final = given[-1] == "final"
    layers = given[:-1] if has_final else given
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise ValueError(
                f'taps must be numbers of layers with "final" last, if at all; got {layer!r}'
            )
    return layers, has_final


def _checked(option: _core.Option, value: Any) -> Any:
    """`value` in the option's type; the core checks its range."""
    if option.type == "int":
        return _integer(option, value)
    if option.type == "float":
        return check_number(option.name, value)
    if option.type == "bool" and not isinstance(value, bool):
        raise ValueError(f"{option.name} must be True or False, got {value!r}")
    if option.type == "str" and not isinstance(value, str):
        raise ValueError(f"{option.name} must be a string, got {value!r}")
    return value


def _integer(option: _core.Option, value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)  # sizes are often written 4e9
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{option.name} must be an integer, got {value!r}") from None
    if option.name == "seed":
        return number & _SEED_MASK
    limit = 2 ** (option.num_bits - 1)
    if not -limit <= number < limit:
        raise ValueError(f"{option.name} must be below {limit}, got {number}")
    if number == 0 and option.name in _NOT_ZERO:
        raise ValueError(f"{option.name} must be at least 1, or None for the default")
    return number
