"""`specdec-native bench latency` and `throughput`: an engine in this process, without streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import rich.console
import typer

from specdec_cli import bench_settings as settings
from specdec_cli import bench_tables as tables
from specdec_cli.bench_files import check_result, write_json
from specdec_cli.command_options import Group, Json, Model
from specdec_cli.models import DEFAULT_MODEL, resolve, target_of
from specdec_lab.benchmark.answers import Question
from specdec_lab.benchmark.batches import measure_latency, measure_throughput
from specdec_lab.benchmark.in_process import chat_tokens
from specdec_lab.benchmark.questions import RANDOM, custom_questions, random_tokens
from specdec_lab.evaluation.runner import with_small_cache
from specdec_native.common.progress import make_step_bar, show_stage
from specdec_native.engine import Engine

InputLen = Annotated[int, typer.Option(min=1, help="Tokens of a prompt, which are random.")]
OutputLen = Annotated[int, typer.Option(min=1, help="Tokens of an answer.")]
Temperature = Annotated[float, typer.Option(help="Of sampling; 0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Of prompts and sampling.")]
OutputJson = Annotated[Path | None, typer.Option(help="Write the figures to this .json file.")]


def latency_command(
    *,
    model: Model = DEFAULT_MODEL,
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts answered together.")] = 8,
    num_iters_warmup: Annotated[int, typer.Option(min=0, help="Batches before the clock.")] = 10,
    num_iters: Annotated[int, typer.Option(min=1, help="Batches that are measured.")] = 30,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    output_json: OutputJson = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Measure how long a batch takes in this process, from random prompts to full answers.

    The same batch is answered repeatedly; the prefix cache is off.
    """
    settings.check_temperature(temperature)
    check_result("--output-json", output_json)
    length = {"max_model_len": input_len + output_len}
    with _load(model, speculation, {**length, **engine}, batch_size) as loaded:
        bar = make_step_bar("Batches", num_iters_warmup + num_iters)
        try:
            report = measure_latency(
                loaded,
                input_len=input_len,
                output_len=output_len,
                batch_size=batch_size,
                num_warmups=num_iters_warmup,
                num_iters=num_iters,
                temperature=temperature,
                seed=seed,
                on_iteration=lambda done, seconds: bar.update(done, f"{1e3 * seconds:.0f} ms"),
            )
        finally:
            bar.close()
    fields = {
        "model": model,
        "input_len": input_len,
        "output_len": output_len,
        "batch_size": batch_size,
        **report.to_json(),
    }
    if not _write(fields, output_json, as_json):
        out = rich.console.Console(highlight=False, soft_wrap=True)
        out.print(tables.latency_table(report))
        out.print(f"{report.tokens_per_s:.1f} output tokens/s", markup=False)


def throughput_command(
    *,
    model: Model = DEFAULT_MODEL,
    dataset_name: Annotated[
        str | None, typer.Option(help="random, or custom for the files of --dataset-path.")
    ] = None,
    dataset_path: Annotated[
        list[Path] | None, typer.Option(help="A .jsonl file of prompts. Repeatable.")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts; those of the files, or 100 if left out.")
    ] = None,
    input_len: InputLen = 128,
    output_len: OutputLen = 128,
    chat: Annotated[bool, typer.Option(help="Put prompts into the chat template.")] = False,
    ignore_eos: Annotated[
        bool, typer.Option(help="Answers do not end before they are full.")
    ] = True,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    output_json: OutputJson = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Measure tokens per second in this process, with all prompts given at once.

    The prefix cache is off.
    """
    settings.check_temperature(temperature)
    check_result("--output-json", output_json)
    files = dataset_path or []
    is_custom = settings.dataset_of(dataset_name, files) == "custom"
    questions = custom_questions(files, num_prompts, output_len, seed) if is_custom else []
    with _load(model, speculation, engine, None) as loaded:
        if not is_custom:
            size = loaded.model_info().vocab_size
            prompts = random_tokens(num_prompts or 100, input_len, size, seed)
            questions = [
                Question(RANDOM, tokens, output_len, seed + i) for i, tokens in enumerate(prompts)
            ]
        elif chat:
            questions = [chat_tokens(loaded, question) for question in questions]
        show_stage(f"answering {len(questions)} prompts")
        report = measure_throughput(
            loaded, questions, temperature=temperature, ignore_eos=ignore_eos
        )
    if not _write({"model": model, **report.to_json()}, output_json, as_json):
        out = rich.console.Console(highlight=False, soft_wrap=True)
        out.print(tables.throughput_table(report))
        if report.categories:
            out.print(tables.drafts_table(report))


def _load(model: str, speculation: Group, engine: Group, batch: int | None) -> Engine:
    """An engine without a prefix cache; with room for `batch` requests, if that is given."""
    target = target_of(model, **speculation)
    directory = resolve(target, engine)
    show_stage("loading an engine")
    options: dict[str, Any] = {"enable_prefix_caching": False, **engine}
    if batch is not None:
        options = with_small_cache(directory, batch, options)
    return Engine(directory, **options, speculative_config=target.speculative_config)


def _write(fields: dict[str, Any], file: Path | None, as_json: bool) -> bool:
    """Writes figures to the file and as JSON, if requested; returns whether they were printed."""
    if file is not None:
        write_json(file, fields)
    if as_json:
        print(json.dumps(fields, indent=2))
    return as_json
