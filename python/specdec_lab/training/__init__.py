"""Trains draft heads for a target, on the target's own answers, and writes them as checkpoints.

    from specdec_lab.training import DataOptions, TrainingOptions, train_head

    report = train_head("SmolLM2-135M-Instruct", "out", TrainingOptions(method="eagle3"))

Needs torch and safetensors (the extra `train`). Nothing outside of this folder imports torch. Names
are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_lab.training.errors import TrainingError
    from specdec_lab.training.training_options import DataOptions, TrainingOptions
    from specdec_lab.training.training_report import Report
    from specdec_lab.training.training_run import train_head

__all__ = ["DataOptions", "Report", "TrainingError", "TrainingOptions", "train_head"]

_MODULE_OF = {
    "DataOptions": "training_options",
    "Report": "training_report",
    "TrainingError": "errors",
    "TrainingOptions": "training_options",
    "train_head": "training_run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
