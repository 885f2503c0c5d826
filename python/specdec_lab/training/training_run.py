"""Trains a head from a model's name to a report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec_lab.training.batch_order import BatchOrder
from specdec_lab.training.checkpoint import Checkpoints, read_log, require_same
from specdec_lab.training.distributed import Ranks, joined, local_device
from specdec_lab.training.engine_acceptance import measure_by_engine
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.export import DTYPES, write_head
from specdec_lab.training.gpu_examples import ResidentExamples, spare_bytes
from specdec_lab.training.head_methods import (
    METHODS,
    check_method,
    check_target,
    engine_runs,
    make_head,
)
from specdec_lab.training.optimizers import default_learning_rate, make_optimizers
from specdec_lab.training.outdir import OutDirectory
from specdec_lab.training.precision import choose_dtype
from specdec_lab.training.predicted_acceptance import Acceptance, evaluate
from specdec_lab.training.prepare import Begun, Prepared, make_store, prepare
from specdec_lab.training.start_from import start_from
from specdec_lab.training.tapped_examples import taps_of
from specdec_lab.training.target import TargetWeights, read_config
from specdec_lab.training.trainer import Trainer
from specdec_lab.training.training_chart import draw_chart
from specdec_lab.training.training_options import DataOptions, TrainingOptions
from specdec_lab.training.training_report import Report
from specdec_lab.training.watch import Watcher
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.errors import MissingDependencyError
from specdec_native.common.progress import show_stage

_logger = logging.getLogger("specdec_native")

_EXAMPLES_SHOWN = 8  # shown to a new head


def train_head(
    model: str | Path,
    out: str | Path,
    options: TrainingOptions | None = None,
    data: DataOptions | None = None,
    *,
    layout: str = "common",
    head_dtype: str = "bfloat16",
    measure: bool = True,
    engine_options: Mapping[str, Any] | None = None,
    command: str = "",
) -> Report | None:
    """Trains a draft head for a model, and writes it to OUT/head.

    After an interrupt or kill, the same call resumes the training, and on a CPU the head comes out
    the same, bit for bit.

    Args:
        model: a directory or a model name.
        out: a directory that is empty, missing, or of the same training. It receives the examples
            (data), checkpoints, the log, the head, report.json, report.md and chart.png.
        options: how the head is trained.
        data: the training data.
        layout: the layout of the head's files: "common", which every reader accepts, or
            "speculators".
        head_dtype: the head's weights are written in "bfloat16", "float16" or "float32".
        measure: whether the engine measures the finished head, if it drafts with such heads.
        engine_options: options of the engine that answers, such as {"max_num_seqs": 64}.
        command: the command line, for the report.

    Returns the report; None in all of torchrun's processes but the first.

    Raises TrainingError for unusable data or options, a full disk, a loss that is not finite and so
    on; existing files are kept. Raises what hub.resolve_model raises.
    """
    options, data = options or TrainingOptions(), data or DataOptions()
    check_method(options, layout)
    if head_dtype not in DTYPES:
        raise TrainingError(f"head_dtype: must be one of {', '.join(DTYPES)}, got {head_dtype!r}")
    out = Path(out).expanduser()
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    torch.set_float32_matmul_precision("high")  # a setting for GPUs
    device = local_device(options.device)
    with joined(device) as ranks, contextlib.ExitStack() as stack:
        if ranks.is_first:
            stack.enter_context(OutDirectory(out).claimed(str(model)))
        settings = _Settings(
            model=str(model),
            out=OutDirectory(out),
            options=options,
            data=data,
            layout=layout,
            head_dtype=head_dtype,
            measure=measure and engine_runs(options.method),
            engine_options=_with_defaults(engine_options or {}, options, device),
            command=command,
        )
        run = _Run(settings, ranks, device)
        prepared = run.prepare()
        trainer = run.train(prepared)
        return run.finish(prepared, trainer) if ranks.is_first else None


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The arguments of train_head()."""

    model: str
    out: OutDirectory
    options: TrainingOptions
    data: DataOptions
    layout: str
    head_dtype: str
    measure: bool
    engine_options: Mapping[str, Any]
    command: str


def _with_defaults(
    given: Mapping[str, Any], options: TrainingOptions, device: torch.device
) -> dict[str, Any]:
    """An engine's options, with the training's device and threads as defaults."""
    # An engine may find a GPU where torch has none.
    defaults: dict[str, Any] = {"device": str(device) if device.type == "cuda" else options.device}
    if options.num_threads:
        defaults["num_threads"] = options.num_threads
    return {**defaults, **given}


class _Run:
    """One training."""

    def __init__(self, settings: _Settings, ranks: Ranks, device: torch.device) -> None:
        self._settings = settings
        self._options = settings.options
        self._ranks = ranks
        self._device = device
        self._residents: ResidentExamples | None = None
        self._saved = Checkpoints(settings.out.checkpoints).load()
        ranks.wait()  # no process writes before all have read

    def _show_stage(self, number: int, text: str) -> None:
        if self._ranks.is_first:
            show_stage(f"stage {number} of {4 if self._settings.measure else 3}: {text}")

    def prepare(self) -> Prepared:
        """Finds the target, and makes and opens the data; other processes wait for the first.

        A resumed training keeps the examples it began with.
        """
        settings, options, saved = self._settings, self._options, self._saved
        if saved is not None:
            require_same(saved, options)
        data_dir = settings.data.data_dir
        store = Path(data_dir).expanduser() if data_dir else settings.out.data
        if self._ranks.is_first and saved is None:
            self._show_stage(1, "the model answers prompts, which are trained on")
            directory = hub.resolve_model(settings.model)
            check_target(options, TargetWeights.load(directory))
            begin = time.monotonic()
            try:
                make_store(
                    directory,
                    store,
                    taps_of(options, read_config(directory)),
                    data=settings.data,
                    options=options,
                    engine_options=settings.engine_options,
                )
            finally:
                with contextlib.suppress(TrainingError):  # a full disk, reported already
                    settings.out.add_data_seconds(time.monotonic() - begin)
        self._ranks.wait()
        self._show_stage(2, "examples are read")
        self._directory = hub.resolve_model(settings.model)
        begun = None if saved is None else Begun(**saved.begun)
        dtype = choose_dtype(options.training_dtype, self._device) if begun is None else ""
        prepared = prepare(
            self._directory,
            read_config(self._directory),
            store,
            options=options,
            engine_options=settings.engine_options,
            begun=begun,
            dtype=self._ranks.from_first(dtype),
        )
        if self._ranks.is_first and saved is not None:
            num_begun, wanted = prepared.facts["answer_tokens"], settings.data.answer_tokens
            if num_begun < wanted != DataOptions.answer_tokens:
                _logger.warning(
                    "the training goes on with the %d answer tokens that it began with, not %d; "
                    "for more, give --out another directory, and this store by --data-dir %s",
                    *(num_begun, wanted, store),
                )
        return prepared

    def train(self, prepared: Prepared) -> Trainer:
        """Trains from the last checkpoint to the end; then sets the head's best weights."""
        options, saved, begun = self._options, self._saved, prepared.begun
        model = self._settings.model
        name = None if Path(model).expanduser().exists() else model
        target = TargetWeights.load(self._directory, name).to(self._device)
        self.head = make_head(options, target, begun.draft_ids.to(self._device))
        generator = torch.Generator().manual_seed(options.seed)
        self.head.initialise(generator, prepared.evaluated[:_EXAMPLES_SHOWN])
        if options.start_from and saved is None:
            start_from(self.head, options.method, options.start_from)
        self.head.to(self._device)
        order = BatchOrder(
            prepared.lengths,
            prepared.trained,
            batch_tokens=options.batch_tokens,
            epochs=options.epochs,
            seed=options.seed,
        )
        examples = prepared.examples
        if self._device.type == "cuda":
            self._residents = ResidentExamples(examples, self._device, spare_bytes(self._device))
            examples = self._residents
        trainer = Trainer(
            self.head,
            make_optimizers(self.head, options, order.num_steps),
            examples,
            order,
            options,
            ranks=self._ranks,
            autocast=None if begun.dtype == "float32" else getattr(torch, begun.dtype),
        )
        log_bytes = 0
        if saved is not None:
            trainer.load_state_dict(saved.trainer)
            log_bytes = saved.log_bytes
            _logger.info("going on from step %d of %d", trainer.course.step, order.num_steps)
        evaluation = functools.partial(
            evaluate,
            self.head,
            prepared.evaluated,
            options.max_depth,
            max_length=options.max_length,
            batch_tokens=options.micro_batch_tokens or options.batch_tokens,
            ranks=self._ranks,
        )
        self._show_stage(3, f"the head is trained, {order.num_steps} steps")
        if self._ranks.is_first:
            watcher = Watcher(self._settings.out, trainer, options, begun, log_bytes)

            def watched_evaluation() -> Acceptance:
                watcher.on_evaluating()
                return evaluation()

            try:
                trainer.run(watched_evaluation, watcher.on_step, watcher.on_evaluation)
            finally:
                watcher.close()
        else:
            trainer.run(evaluation)
        trainer.load_best()
        return trainer

    def finish(self, prepared: Prepared, trainer: Trainer) -> Report:
        """Writes the head, has the engine measure it, and writes the report."""
        settings, options, course = self._settings, self._options, trainer.course
        directory = write_head(
            self.head.files(settings.layout), settings.out.head, settings.head_dtype
        )
        engine = None
        if settings.measure:
            if self._residents is not None:
                self._residents.clear()  # the engine needs the memory
            self._show_stage(4, f"the engine measures {directory}")
            engine = measure_by_engine(
                self._directory,
                {**METHODS[options.method].speculative, "model": str(directory)},
                prepared.evaluated,
                options.max_depth,
                max_length=options.max_length,
                **{**settings.engine_options, "dtype": prepared.engine_dtype},
            )
        report = Report(
            model=settings.model,
            head=str(directory),
            command=settings.command,
            options={**vars(options), **vars(settings.data)},
            data={**prepared.facts, "seconds": settings.out.data_seconds()},
            training={
                "steps": course.step,
                "best_step": course.evaluations[course.best][0],
                "answer_tokens": course.num_tokens,
                "learning_rate": options.learning_rate or default_learning_rate(options, self.head),
                "seconds": course.seconds,
                "answer_tokens_per_second": course.num_tokens / max(course.seconds, 1e-9),
                "parameters_trained": sum(
                    p.numel() for p in self.head.parameters() if p.requires_grad
                ),
                "dtype": prepared.begun.dtype,
                "device": str(self._device),
                "processes": self._ranks.size,
                "threads": torch.get_num_threads(),
            },
            acceptance=course.evaluations[course.best][2],
            engine=engine,
            curve=[(tokens, acceptance) for _, tokens, acceptance in course.evaluations],
        )
        report.write(settings.out.path)
        title = f"{options.method} head of {Path(settings.model).name}"
        try:
            draw_chart(read_log(settings.out.log), title, settings.out.chart)
        except MissingDependencyError as fault:
            _logger.warning("there is no chart: %s", fault)
        return report
