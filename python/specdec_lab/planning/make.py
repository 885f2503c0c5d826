"""Makes plans: measures this machine, or computes another one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.planning.costs import ComputedCosts, DrafterShape, MeasuredCosts, Passes
from specdec_lab.planning.layouts import Devices, LayoutPlan, layout_costs, predict_layouts
from specdec_lab.planning.measure import Grid, measure
from specdec_lab.planning.plan import Plan, predict
from specdec_lab.planning.ranks import (
    MAX_TENSOR_PARALLEL,
    ShapeMaker,
    SharedModel,
    share_model,
)
from specdec_lab.planning.roofline import (
    Machine,
    Point,
    decoding_point,
    observed_machine,
    prompt_flops,
    prompt_point,
)
from specdec_lab.planning.shapes import ModelShape, head_shape, model_shape
from specdec_lab.planning.speedup import Acceptance, PassCosts
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.hf_config import load_hf_config
from specdec_native.speculation.drafter_options import DrafterOptions
from specdec_native.speculation.methods import HEADS
from specdec_native.speculation.speculative_config import parse_speculative_config

_PROMPT_ROWS = 512


@dataclasses.dataclass(frozen=True)
class Question:
    """What is planned.

    Attributes:
        model: what is shown as its name.
        directory: with its config.json, and with its weights where passes are measured.
        speculation: keys of drafters and num_speculative_tokens, the longest draft.
        batches, contexts: in rising order.
        engine_options: keyword arguments of Engine.
    """

    model: str
    directory: Path
    speculation: Mapping[str, Any]
    batches: Sequence[int]
    contexts: Sequence[int]
    engine_options: Mapping[str, Any]

    @property
    def longest(self) -> int:
        """The longest draft, in tokens."""
        return int(self.speculation["num_speculative_tokens"])


def measured_plan(
    question: Question,
    acceptance: Acceptance | None,
    on_point: Callable[[int, int, str], None] = lambda *_: None,
) -> Plan:
    """A plan for this machine. Raises what Engine raises."""
    grid = Grid(question.batches, question.contexts, question.longest)
    found = measure(
        question.directory,
        question.speculation,
        grid,
        question.engine_options,
        on_point,
        acceptance=acceptance,
    )
    costs = MeasuredCosts(found.points)
    shape = _target_shape(question, found.facts["weight_format"])
    points = _points(question, costs, shape)
    if found.prompt_seconds > 0:
        points.append(prompt_point(shape, found.prompt_rows, found.prompt_seconds))
    return Plan(
        machine=observed_machine(points),
        is_measured=True,
        facts=found.facts,
        points=points,
        **_predicted(question, costs, acceptance),
    )


def computed_plan(question: Question, machine: Machine, acceptance: Acceptance | None) -> Plan:
    """A plan for a machine that need not be here. Raises CheckpointError."""
    shape = _target_shape(question, None)
    drafters = parse_speculative_config(question.speculation, hub.find_config).drafters
    shapes = [s for d in drafters if (s := _drafter_shape(d, question)) is not None]
    costs = ComputedCosts(machine, shape, shapes[0] if shapes else None)
    prompt_bytes = shape.pass_bytes(_PROMPT_ROWS, 1, 0)
    seconds = machine.seconds(prompt_bytes, prompt_flops(shape, _PROMPT_ROWS))
    points = [*_points(question, costs, shape), prompt_point(shape, _PROMPT_ROWS, seconds)]
    return Plan(
        machine=machine,
        is_measured=False,
        facts={},
        points=points,
        **_predicted(question, costs, acceptance),
    )


def layout_plan(question: Question, devices: Devices, acceptance: Acceptance | None) -> LayoutPlan:
    """A plan for several devices that need not be here; without acceptance, of plain decoding.

    Raises CheckpointError, and ValueError where no layout has enough memory.
    """
    targets = _shared(load_hf_config(question.directory, None), _target_maker(question, None))
    drafters: dict[int, SharedModel] = {}
    passes: Passes = "levels"
    if acceptance is not None:
        parsed = parse_speculative_config(question.speculation, hub.find_config).drafters
        models = [m for d in parsed if (m := _drafter_model(d, question)) is not None]
        if models:
            drafters, passes = models[0].shared(), models[0].passes
    layouts = layout_costs(devices, targets, drafters, passes)
    return LayoutPlan(
        model=question.model,
        speculation=_drafter_keys(question) if acceptance is not None else {},
        devices=devices,
        batches=question.batches,
        contexts=question.contexts,
        acceptance=acceptance,
        **predict_layouts(layouts, devices, question.batches, question.contexts, acceptance),
    )


def _drafter_keys(question: Question) -> dict[str, Any]:
    return {k: v for k, v in question.speculation.items() if k != "num_speculative_tokens"}


def _predicted(
    question: Question, costs: PassCosts, acceptance: Acceptance | None
) -> dict[str, Any]:
    """The fields of a Plan that do not say where costs come from."""
    return {
        "model": question.model,
        "speculation": _drafter_keys(question),
        "batches": question.batches,
        "contexts": question.contexts,
        "longest": question.longest,
        "acceptance": acceptance,
        **predict(costs, question.batches, question.contexts, question.longest, acceptance),
    }


def _points(question: Question, costs: PassCosts, shape: ModelShape) -> list[Point]:
    """Decoding and verifying at every batch size and the shortest and longest context."""
    ends = sorted({question.contexts[0], question.contexts[-1]})
    return [
        decoding_point(shape, b, rows, c, costs.target_seconds(b, rows, c))
        for c in ends
        for rows_each in (1, 1 + question.longest)
        for b in question.batches
        for rows in (b * rows_each,)
    ]


def _target_shape(question: Question, weight_format: str | None) -> ModelShape:
    return _target_maker(question, weight_format)(load_hf_config(question.directory, None))


def _target_maker(question: Question, weight_format: str | None) -> ShapeMaker:
    options = question.engine_options
    stored = options.get("quantization") or "auto"
    if weight_format is not None:  # as loaded, such as "int4+int8, from gguf q4_k"
        stored = weight_format.split(",")[0].split("+")[0]
    return functools.partial(
        model_shape,
        dtype=options.get("dtype") or "auto",
        quantization=stored,
        kv_cache_dtype=options.get("kv_cache_dtype") or "auto",
    )


def _drafter_shape(drafter: DrafterOptions, question: Question) -> DrafterShape | None:
    found = _drafter_model(drafter, question)
    return None if found is None else DrafterShape(found.make_shape(found.config), found.passes)


@dataclasses.dataclass(frozen=True)
class _DrafterModel:
    """A drafter that runs a model: what its config.json holds, and how sizes follow from that."""

    config: Mapping[str, Any]
    make_shape: ShapeMaker
    passes: Passes
    can_be_shared: bool = True

    def shared(self) -> dict[int, SharedModel]:
        """By the number of ranks."""
        most = MAX_TENSOR_PARALLEL if self.can_be_shared else 1
        return _shared(self.config, self.make_shape, most)


def _drafter_model(drafter: DrafterOptions, question: Question) -> _DrafterModel | None:
    if drafter.method != "draft_model" and drafter.method not in HEADS:
        return None
    quantization = str(drafter.fields.get("quantization", "int8"))
    in_parallel = bool(drafter.fields.get("parallel_drafting"))
    if drafter.method == "draft_model":
        directory = hub.resolve_model(drafter.model or "", revision=drafter.revision, weights=False)
        make_shape = functools.partial(model_shape, quantization=quantization)
        config = load_hf_config(directory, None)
        return _DrafterModel(config, make_shape, "rows" if in_parallel else "levels")
    target = load_hf_config(question.directory, None)
    if drafter.config is None:
        raise ValueError(
            f"there is no config.json to read for the head {drafter.model}; give its directory"
        )
    head, method = drafter.config, drafter.method

    def make_head_shape(values: Mapping[str, Any]) -> ModelShape:
        changed = dataclasses.replace(head, values=values)
        return head_shape(changed, method, target, quantization=quantization)

    return _DrafterModel(
        {**target, **head.layers, **head.values},
        make_head_shape,
        "one" if method == "medusa" else "rows" if in_parallel else "levels",
        can_be_shared=method in ("eagle", "eagle3"),
    )


def _shared(
    config: Mapping[str, Any], make_shape: ShapeMaker, most: int = MAX_TENSOR_PARALLEL
) -> dict[int, SharedModel]:
    found = {size: share_model(config, make_shape, size) for size in range(1, most + 1)}
    return {size: model for size, model in found.items() if model is not None}
