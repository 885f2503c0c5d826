"""Users' functions that change logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from specdec_native.common.checks import shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Logits: TypeAlias = "npt.NDArray[np.float32]"

_FORMS = "(output_token_ids, logits) or (prompt_token_ids, output_token_ids, logits)"


class LogitsProcessor:
    """The core's view of a function in either of vLLM's forms."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, type) or not callable(function):
            raise ValueError(
                f"logits_processors must hold functions of {_FORMS}, got {shown(function)}"
                + ("; make an object of the class" if callable(function) else "")
            )
        self.name = str(getattr(function, "__name__", type(function).__name__))
        num_arguments = _num_arguments(function)
        if num_arguments not in (2, 3):
            raise ValueError(
                f"logits_processors: {self.name} takes {num_arguments} arguments; it must take "
                + _FORMS
            )
        self._function = function
        self._takes_prompt = num_arguments == 3

    def apply(self, prompt: list[int], output: list[int], logits: Logits) -> Logits:
        """The function's result for `logits`, which it may change. Raises what it raises."""
        import numpy as np  # noqa: PLC0415 - 20 MB that requests without functions do without

        shape = logits.shape
        given = (prompt, output) if self._takes_prompt else (output,)
        changed = self._function(*given, logits)
        if changed is None:
            raise ValueError("returned None; return the logits")
        result = np.asarray(changed, dtype=np.float32)
        if result.shape != shape:
            raise ValueError(f"returned logits of shape {result.shape}, got {shape}")
        return result


def _num_arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ValueError(
            f"logits_processors: {shown(function)} does not tell its arguments; wrap it in a "
            f"function of {_FORMS}"
        ) from None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
