"""The training methods by name: the head that each makes, and how the engine runs it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.target import TargetWeights
from specdec_lab.training.training_options import LAYOUTS, TrainingOptions
from specdec_native.speculation.methods import METHODS as ENGINE_METHODS


@dataclasses.dataclass(frozen=True)
class Method:
    """A kind of head.

    Attributes:
        module, name: its class, within `heads`.
        speculative: its entries in the engine's speculative_config.
        takes: options that its class takes by keyword.
        scores_all: whether it scores the whole vocabulary.
        layouts: file layouts that exist for its heads.
    """

    module: str
    name: str
    speculative: Mapping[str, Any]
    takes: tuple[str, ...] = ("num_layers", "train_lm_head")
    scores_all: bool = False
    layouts: tuple[str, ...] = LAYOUTS

    def head_class(self) -> type[TrainableHead]:
        """The class of its heads."""
        module = importlib.import_module(f"specdec_lab.training.heads.{self.module}")
        found: type[TrainableHead] = getattr(module, self.name)
        return found


_OF_SPANS = ("num_layers", "train_lm_head", "anchor_share")

METHODS: dict[str, Method] = {
    "eagle3": Method("eagle3", "Eagle3", {"method": "eagle3"}),
    "eagle": Method("eagle1", "Eagle1", {"method": "eagle"}, takes=("num_layers",)),
    "medusa": Method("medusa", "Medusa", {"method": "medusa"}, layouts=("common",)),
    "mlp_speculator": Method(
        "mlp_speculator",
        "MlpSpeculator",
        {"method": "mlp_speculator"},
        takes=(),
        scores_all=True,
        layouts=("common",),
    ),
    "parallel": Method(
        "parallel_eagle", "ParallelEagle", {"method": "eagle3", "parallel_drafting": True}
    ),
    "mtp": Method("mtp", "Mtp", {"method": "mtp"}, takes=(), layouts=("common",)),
    "dflash": Method("dflash", "DFlash", {"method": "dflash"}, takes=_OF_SPANS),
    "dspark": Method("dspark", "DSpark", {"method": "dspark"}, takes=(*_OF_SPANS, "markov_rank")),
}


def engine_runs(method: str) -> bool:
    """Whether this engine drafts with heads of a method."""
    return METHODS[method].speculative["method"] in ENGINE_METHODS


def check_method(options: TrainingOptions, layout: str) -> None:
    """Raises TrainingError for options and file layouts that the method does not have."""
    method = METHODS[options.method]
    if layout not in method.layouts:
        raise TrainingError(
            f"layout: must be one of {', '.join(method.layouts)} for heads of the method "
            f"{options.method}, got {layout!r}"
        )
    defaults = TrainingOptions()
    for name in ("num_layers", "train_lm_head", "anchor_share", "markov_rank"):
        if name not in method.takes and getattr(options, name) != getattr(defaults, name):
            raise TrainingError(
                f"{name}: heads of the method {options.method} have no such choice; leave "
                f"--{name.replace('_', '-')} out"
            )


def make_head(options: TrainingOptions, target: TargetWeights, draft_ids: Tensor) -> TrainableHead:
    """A head without its first weights; `options` have passed check_method()."""
    method = METHODS[options.method]
    given = {name: getattr(options, name) for name in method.takes}
    if not options.num_layers:  # the class has its own default
        given.pop("num_layers", None)
    make: Any = method.head_class()
    head: TrainableHead = make(target, draft_ids, options.max_depth, **given)
    return head


def check_target(options: TrainingOptions, target: TargetWeights) -> None:
    """Raises TrainingError for a target that has no heads of the method."""
    scores_all = METHODS[options.method].scores_all
    make_head(options, target, torch.arange(len(target.lm_head) if scores_all else 1))
