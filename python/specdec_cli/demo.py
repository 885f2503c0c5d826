"""Runs `specdec-native demo`: measures plain decoding and every method of speculation on a few
prompts, one at a time and together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_lab.evaluation.decoding_methods import (
    FREE_DRAFT_TOKENS,
    NGRAM,
    PLAIN,
    SUFFIX,
    Method,
    speculative,
)
from specdec_lab.evaluation.method_report import Report, Sample, Workload, make_rows
from specdec_lab.evaluation.prompts import PROMPTS
from specdec_lab.evaluation.runner import Runner, Task, describe
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.head_registry import RegistryHead, heads_of
from specdec_native.checkpoints.model_registry import find_model
from specdec_native.engine import Engine
from specdec_native.speculation.auto_drafters import AUTO, asks_for_auto
from specdec_native.speculation.speculative_config import parse_speculative_config

_BATCH = 8
_DRAFT_TOKENS = 5
# Known models, each with a smaller model of the same vocabulary.
_DRAFT_MODELS = {"Qwen2.5-Coder-1.5B-Instruct": "Qwen2.5-Coder-0.5B-Instruct"}


def draft_model_for(model: str) -> str | None:
    """The known draft model of a known model, by name."""
    known = find_model(model) or find_model(os.path.basename(model.rstrip(os.sep)))
    return None if known is None else _DRAFT_MODELS.get(known.name)


def heads_for(model: str) -> list[RegistryHead]:
    """The known draft heads of a known model, by name."""
    known = find_model(model) or find_model(os.path.basename(model.rstrip(os.sep)))
    return [] if known is None else heads_of(known.name)


def methods_for(model: str) -> list[Method]:
    """Plain decoding as the baseline, and the methods available for a model."""
    methods = [
        PLAIN,
        speculative("ngram", FREE_DRAFT_TOKENS, **NGRAM),
        speculative("suffix", FREE_DRAFT_TOKENS, **SUFFIX),
        speculative("ngram+suffix", FREE_DRAFT_TOKENS, drafters=[NGRAM, SUFFIX]),
    ]
    draft_model = draft_model_for(model)
    if draft_model is not None:
        draft = {"method": "draft_model", "model": draft_model}
        methods.append(speculative("draft model", _DRAFT_TOKENS, **draft))
        methods.append(speculative("suffix+draft", _DRAFT_TOKENS, drafters=[SUFFIX, draft]))
    methods += [
        Method(f"{head.method} head", {"method": head.method, "model": head.name})
        for head in heads_for(model)
    ]
    return methods


def compare_with(speculative_config: Mapping[str, Any]) -> list[Method]:
    """Plain decoding and one method."""
    if asks_for_auto(speculative_config):
        return [PLAIN, Method(AUTO, speculative_config)]
    drafters = parse_speculative_config(speculative_config, hub.find_config).drafters
    names = [drafter.method.replace("_", " ") for drafter in drafters]
    return [PLAIN, Method("+".join(names), speculative_config)]


@dataclasses.dataclass
class Answer:
    """The first method's answer to a prompt."""

    kind: str
    prompt: str
    text: str


@dataclasses.dataclass
class DemoReport(Report):
    """The results of a demo run."""

    answers: list[Answer] = dataclasses.field(default_factory=list)


def run_demo(
    model: str | os.PathLike[str],
    *,
    max_tokens: int = 128,
    methods: Sequence[Method] = (PLAIN,),
    engine_options: Mapping[str, Any] | None = None,
    on_event: Callable[[DemoReport], None] = lambda _: None,
) -> DemoReport:
    """Runs every method over the same workloads, greedily.

    `on_event` is called with the report whenever it has grown.
    """
    firsts = [next(p for p in PROMPTS if p.category == kind) for kind in ("chat", "code", "edit")]
    tasks = [Task(Workload(prompt.category), [[prompt]]) for prompt in firsts]
    tasks.append(Task(Workload("mixed", _BATCH), [PROMPTS[:_BATCH]]))
    prompts = {task.workload: task.calls[0][0] for task in tasks if task.workload.batch == 1}
    reports: list[DemoReport] = []

    def add_engine(engine: Engine, load_seconds: float) -> None:
        reports.append(DemoReport(**describe(engine, load_seconds)))
        on_event(reports[0])

    def add_sample(sample: Sample) -> None:
        reports[0].rows = make_rows(runner.samples)
        prompt = prompts.get(sample.workload)
        if sample.method == methods[0].name and prompt is not None:
            text = sample.outputs[0].outputs[0].text
            reports[0].answers.append(Answer(prompt.category, prompt.text, text))
        on_event(reports[0])

    options = engine_options or {}
    runner = Runner(
        model, methods, tasks, max_tokens, options, on_load=add_engine, on_sample=add_sample
    )
    runner.run_in_turns()
    return reports[0]
