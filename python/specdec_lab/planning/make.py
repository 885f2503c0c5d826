"""Makes plans: from measurements on this machine, or from the rates of another one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.planning.costs import MeasuredCosts, Passes
from specdec_lab.planning.layouts import Devices, LayoutPlan, layout_costs, predict_layouts
from specdec_lab.planning.measure import Grid, measure
from specdec_lab.planning.plan import Plan, predict
from specdec_lab.planning.ranks import Link, RankCosts
from specdec_lab.planning.roofline import (
    Machine,
    Point,
    decoding_point,
    observed_machine,
    prompt_flops,
    prompt_point,
)
from specdec_lab.planning.speedup import Acceptance, PassCosts
from specdec_native import _core
from specdec_native._core import ModelFacts
from specdec_native.checkpoints import hub
from specdec_native.speculation.drafter_options import DrafterOptions
from specdec_native.speculation.likely_tokens import DraftTarget
from specdec_native.speculation.methods import HEADS, IN_SPANS, IN_TARGET
from specdec_native.speculation.speculative_config import parse_speculative_config
from specdec_native.text.tokenizer import Tokenizer

_PROMPT_ROWS = 512


@dataclasses.dataclass(frozen=True)
class Question:
    """The input of a plan.

    Attributes:
        model: the displayed name.
        directory: the folder of its config.json, and of its weights where passes are measured.
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
    whole = _targets(question, found.facts["weight_format"])[0]
    points = _points(question, costs, whole)
    if found.prompt_seconds > 0:
        points.append(prompt_point(whole, found.prompt_rows, found.prompt_seconds))
    return Plan(
        machine=observed_machine(points),
        is_measured=True,
        facts=found.facts,
        points=points,
        **_predicted(question, costs, acceptance),
    )


def computed_plan(question: Question, machine: Machine, acceptance: Acceptance | None) -> Plan:
    """A plan for any machine, from its rates. Raises CheckpointError."""
    whole = _targets(question)[0]
    drafters, passes = _drafters(question)
    one_device = Link(0.0, math.inf)
    costs = RankCosts(machine, one_device, whole, 1, drafters[0] if drafters else None, passes)
    prompt_bytes = whole.pass_bytes(_PROMPT_ROWS, 1, 0)
    seconds = machine.seconds(prompt_bytes, prompt_flops(whole, _PROMPT_ROWS))
    points = [*_points(question, costs, whole), prompt_point(whole, _PROMPT_ROWS, seconds)]
    return Plan(
        machine=machine,
        is_measured=False,
        facts={},
        points=points,
        **_predicted(question, costs, acceptance),
    )


def layout_plan(question: Question, devices: Devices, acceptance: Acceptance | None) -> LayoutPlan:
    """A plan for any devices, from their rates; for plain decoding without acceptance.

    Raises CheckpointError, and ValueError where no layout has enough memory.
    """
    drafters, passes = _drafters(question) if acceptance is not None else ([], "levels")
    layouts = layout_costs(devices, _targets(question), drafters, passes)
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
    """The fields of a Plan that do not depend on where costs come from."""
    return {
        "model": question.model,
        "speculation": _drafter_keys(question),
        "batches": question.batches,
        "contexts": question.contexts,
        "longest": question.longest,
        "acceptance": acceptance,
        **predict(costs, question.batches, question.contexts, question.longest, acceptance),
    }


def _points(question: Question, costs: PassCosts, model: ModelFacts) -> list[Point]:
    """Decoding and verifying at every batch size and the shortest and longest context."""
    ends = sorted({question.contexts[0], question.contexts[-1]})
    return [
        decoding_point(model, b, rows, c, costs.target_seconds(b, rows, c))
        for c in ends
        for rows_each in (1, 1 + question.longest)
        for b in question.batches
        for rows in (b * rows_each,)
    ]


def _targets(question: Question, weight_format: str | None = None) -> list[ModelFacts]:
    """The target's facts for each number of ranks; `weight_format` is the loaded one, if known."""
    options = question.engine_options
    quantization = options.get("quantization") or "auto"
    if weight_format is not None:  # such as "int4+int8, from gguf q4_k"
        stored = weight_format.split(",")[0].split("+")[0]
        quantization = stored if stored in _core.known_quantizations() else "none"
    return _core.model_facts(
        str(question.directory),
        dtype=options.get("dtype") or "auto",
        quantization=quantization,
        kv_cache_dtype=options.get("kv_cache_dtype") or "auto",
    )


def _drafters(question: Question) -> tuple[list[ModelFacts], Passes]:
    """The drafter's facts for each number of ranks, and its passes; no facts if it runs no
    model."""
    for drafter in parse_speculative_config(question.speculation, hub.find_config).drafters:
        in_parallel = drafter.method in IN_SPANS or bool(drafter.fields.get("parallel_drafting"))
        passes: Passes = "rows" if in_parallel else "levels"
        quantization = str(drafter.fields.get("quantization", "int8"))
        if drafter.method == "draft_model":
            directory = hub.resolve_model(
                drafter.model or "", revision=drafter.revision, weights=False
            )
            return _core.model_facts(str(directory), quantization=quantization), passes
        if drafter.method in HEADS:
            if drafter.config is None and drafter.method != IN_TARGET:
                raise ValueError(
                    f"there is no config.json to read for the head {drafter.model}; give its "
                    "directory"
                )
            found = _core.head_facts(_head(drafter, question), str(question.directory))
            return found, "one" if drafter.method == "medusa" else passes
    return [], "levels"


def _head(drafter: DrafterOptions, question: Question) -> _core.DrafterConfig:
    """A head with as many tokens to score as an engine has it score."""
    options = question.engine_options
    target = DraftTarget(
        question.directory,
        options.get("dtype") or "auto",
        options.get("quantization") or "auto",
        has_weights=False,  # which tokens they are costs nothing
    )
    return drafter.to_core(
        lambda *_: drafter.config.file.parent if drafter.config is not None else question.directory,
        lambda text: Tokenizer.from_directory(question.directory).encode(
            text, add_special_tokens=False
        ),
        target,
    )
