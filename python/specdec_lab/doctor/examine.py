"""Puts the question: finds the head's files, its method and prompts, and examines it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.doctor.checkpoint import Checkpoint
from specdec_lab.doctor.examination import Examination, Question
from specdec_lab.doctor.findings import Report
from specdec_lab.doctor.questions import QUESTIONS, token_prompts
from specdec_lab.evaluation.runner import with_small_cache
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.stored_weights import mtp_names
from specdec_native.speculation.drafter_options import DRAFTER_KEYS
from specdec_native.speculation.methods import HEADS, IN_TARGET
from specdec_native.speculation.speculative_config import parse_speculative_config

_DEPTH = 3
_SEQUENCES = 16
_LEAST_PROMPTS = 6


def examine(
    model: str,
    target: Path,
    speculative_config: Any,
    *,
    texts: Sequence[str] | None = None,
    max_tokens: int = 48,
    engine_options: Mapping[str, Any] | None = None,
    write_mended: Path | None = None,
    rounds: int = 3,
    on_trial: Callable[[str], None] = lambda _: None,
) -> Report:
    """Examines the head of a speculative_config.

    Args:
        model: the target as the user named it.
        target: its directory.
        speculative_config: of one head or draft model.
        texts: user turns; some of ours if None.
        max_tokens: tokens of each answer.
        engine_options: keyword arguments of Engine.
        write_mended: a directory for the mended head, which must not exist.
        rounds: faults of reading that are looked for, one after the other.
        on_trial: called with what is about to be measured.

    Raises what Engine raises for the target, and ValueError where there is no head to examine or
    there are too few texts.
    """
    drafter, head, depth = _head_of(target, speculative_config)
    options = {
        "max_num_seqs": _SEQUENCES,
        "enable_prefix_caching": False,
        **with_small_cache(target, _SEQUENCES, engine_options or {}),
    }
    prompts = token_prompts(target, tuple(texts or QUESTIONS), options)
    if len(prompts) < _LEAST_PROMPTS:
        raise ValueError(
            f"there are {len(prompts)} prompts, and {_LEAST_PROMPTS} are needed at least: a third "
            "of them to try readings and the rest to confirm what is found"
        )
    name = None if speculative_config.get("model") is None else str(speculative_config["model"])
    report = Report(model, name, drafter["method"], len(prompts), max_tokens, depth)
    question = Question(target, drafter, head, prompts, depth, max_tokens, options)
    examination = Examination(question, report, on_trial, rounds)
    examination.run()
    if write_mended is not None and examination.mended is not None:
        examination.mended.write(write_mended)
        report.written = str(write_mended)
    return report


def _head_of(target: Path, config: Any) -> tuple[dict[str, Any], Checkpoint, int]:
    """The head's keys of a speculative_config, its files, and how many tokens to draft."""
    if not isinstance(config, Mapping) or "drafters" in config:
        raise ValueError("there is no head to examine: give its directory or name (--spec-model)")
    options = parse_speculative_config(config, hub.find_config).drafters[0]
    if options.method not in ("draft_model", *HEADS):
        raise ValueError(
            f'the method "{options.method}" has no checkpoint to examine; give a draft head or '
            "draft model (--spec-model)"
        )
    drafter = {key: value for key, value in config.items() if key in DRAFTER_KEYS}
    drafter = {k: v for k, v in drafter.items() if k not in ("model", "revision")}
    drafter["method"] = options.method
    directory = target
    if options.model is not None:
        directory = hub.resolve_model(options.model, revision=options.revision, quantization="none")
    head = Checkpoint.read(directory)
    if options.method == IN_TARGET:
        head = _mtp_layer(head)
    given = config.get("num_speculative_tokens")
    limit = None if options.config is None else options.config.longest_draft(options.method)
    longest = _DEPTH if limit is None else min(_DEPTH, limit[1])
    return drafter, head, longest if given is None else min(given, longest)


def _mtp_layer(checkpoint: Checkpoint) -> Checkpoint:
    """The layer for multi-token prediction of a checkpoint, which may have the whole model."""
    names = mtp_names(checkpoint.stored)
    kept = {name: checkpoint.stored[name] for name in names} or checkpoint.stored
    return dataclasses.replace(checkpoint, stored=kept)
