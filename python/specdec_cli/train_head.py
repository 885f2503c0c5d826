"""`specdec-native train-head`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import shlex
import signal
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import rich.console
import rich.markdown
import typer

from specdec_cli.command_options import Group, Json, command, engine_options, keyword
from specdec_lab.training.training_options import DataOptions, TrainingOptions
from specdec_native.checkpoints.optional import import_optional
from specdec_native.common.progress import StderrHandler

# Options of the engine that answers; device and threads are the training's.
_ENGINE = (
    *("dtype", "quantization", "cpu_isa", "gpu_memory_utilization", "kv_cache_memory_bytes"),
    *("max_num_seqs", "max_num_batched_tokens"),
)

_ENDED = 128 + signal.SIGTERM  # the exit code as in shells


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    everything = engine_options()
    others = [option.name for option in everything if option.name not in _ENGINE]
    command(
        app,
        "train-head",
        data=_options_of(DataOptions, "Data"),
        training=_options_of(TrainingOptions, "Training"),
        engine=engine_options(without=others),
    )(train_head_command)


def train_head_command(
    *,
    model: Annotated[str, typer.Argument(help="The target: a directory or a model name.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where everything goes; the head is OUT/head.")
    ],
    data: Group,
    training: Group,
    engine: Group,
    layout: Annotated[
        str,
        typer.Option(
            help="The format of the head's files: common, which this engine, vLLM, SGLang and "
            "EAGLE's own code read, or speculators, that of the library of this name."
        ),
    ] = "common",
    head_dtype: Annotated[
        str, typer.Option(help="The head's weights are written in bfloat16, float16 or float32.")
    ] = "bfloat16",
    measure: Annotated[
        bool, typer.Option(help="Have the engine measure the acceptance of the head in the end.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Train a draft head for a model, which then answers faster with --spec-model OUT/head.

    A draft head is a small network that guesses the model's next tokens from its hidden states. The
    model answers prompts of its own making, or those of --data, and the head learns to guess what
    it answers. Run again after an interruption, the same command goes on where it was. On several
    GPUs: torchrun --nproc-per-node 8 -m specdec_native train-head ... Needs the extra "train".
    """
    for package in ("torch", "safetensors"):
        import_optional(package, purpose="training a head", extra="train")
    from specdec_lab.training.training_run import train_head  # noqa: PLC0415 - needs torch

    # Lets finished data be written when a job's time is up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED))
    logger = logging.getLogger("specdec_native")
    logger.addHandler(StderrHandler())
    logger.setLevel(logging.INFO)
    report = train_head(
        model,
        out,
        TrainingOptions(**training),
        DataOptions(**data),
        layout=layout,
        head_dtype=head_dtype,
        measure=measure,
        engine_options=engine,
        command=shlex.join(["specdec-native", *sys.argv[1:]]),
    )
    if report is None:  # not the first process of torchrun
        return
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
        return
    out_console = rich.console.Console(highlight=False)
    out_console.print(rich.markdown.Markdown(report.to_markdown()))
    out_console.print(f"the head is in {report.head}", markup=False)


def _options_of(options: type, panel: str) -> Sequence[inspect.Parameter]:
    """A parameter for each field of TrainingOptions or DataOptions."""
    hints = typing.get_type_hints(options)
    parameters = []
    for field in dataclasses.fields(options):
        kind: Any = hints[field.name]
        choices = field.metadata["choices"]
        text = field.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
        option = typer.Option(help=text, rich_help_panel=panel)
        parameters.append(keyword(field.name, kind, option, field.default))
    return parameters
