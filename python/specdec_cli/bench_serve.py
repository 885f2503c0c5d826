"""`specdec-native bench serve`: load on OpenAI-compatible servers, or on an engine in process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import rich.console
import typer

from specdec_cli import bench_settings as settings
from specdec_cli import bench_tables as tables
from specdec_cli.bench_files import check_result, write_json
from specdec_cli.command_options import Group, Json
from specdec_cli.models import DEFAULT_MODEL, load, target_of
from specdec_lab.benchmark import serving_chart
from specdec_lab.benchmark.answers import Answer, Client, Question
from specdec_lab.benchmark.client import CHAT, OpenAIClient
from specdec_lab.benchmark.in_process import EngineClient
from specdec_lab.benchmark.load_run import Load, cut_into_rounds, run_rounds
from specdec_lab.benchmark.questions import custom_questions, random_questions
from specdec_lab.benchmark.serving_report import ServeReport, make_report
from specdec_lab.evaluation.head_chart import check_chart
from specdec_native.common.file_limit import raise_file_limit
from specdec_native.common.progress import make_step_bar

_NUM_RANDOM = 100
_DEFAULT_URL = "http://127.0.0.1:8000"
_MORE = "More"  # the panel of options that --help-all shows
_WARM_UP = Question("warm-up", "Count from one to ten.", 16)

QuestionMaker = Callable[[Client], Awaitable[list[Question]]]


def serve_command(
    *,
    more_limits: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LIMITS]", help="Further limits behind that of --goodput."),
    ] = None,
    base_url: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A server, {_DEFAULT_URL} if left out. Given several times, all servers get "
            "every request in turns and are compared with the first one."
        ),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Ask an engine of this process, not a server.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="The name that requests have; the server's first if left out."
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            rich_help_panel=_MORE, help="openai for completions, openai-chat for chat completions."
        ),
    ] = "openai",
    endpoint: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MORE, help="The path of requests, if it is not that of the backend."
        ),
    ] = None,
    dataset_name: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MORE, help="random, or custom for the files of --dataset-path."
        ),
    ] = None,
    dataset_path: Annotated[
        list[Path] | None,
        typer.Option(
            help='A .jsonl file of prompts: "prompt", "turns" or "messages", and "category", '
            "which is the file's name if left out. Repeatable."
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(min=1, help=f"Requests; those of the files, or {_NUM_RANDOM} if left out."),
    ] = None,
    random_input_len: Annotated[int, typer.Option(min=1, help="Tokens of a random prompt.")] = 1024,
    random_output_len: Annotated[int, typer.Option(min=1, help="Tokens of its answer.")] = 128,
    random_range_ratio: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.999,
            rich_help_panel=_MORE,
            help="Random lengths differ by this share at most.",
        ),
    ] = 0.0,
    custom_output_len: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=_MORE, help="Tokens of an answer to a file's prompt at most."
        ),
    ] = 256,
    request_rate: Annotated[
        float, typer.Option(help="Requests a second; inf sends all at once.")
    ] = math.inf,
    burstiness: Annotated[
        float,
        typer.Option(
            rich_help_panel=_MORE,
            help="The shape of the gamma distribution of the gaps between requests: 1 is a Poisson "
            "process, less makes bursts, more makes gaps alike.",
        ),
    ] = 1.0,
    max_concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Requests under way at most: so many streams, without a rate."),
    ] = None,
    num_rounds: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=_MORE, help="Turns of each server, where there are several."
        ),
    ] = 10,
    num_warmups: Annotated[
        int,
        typer.Option(
            min=0, rich_help_panel=_MORE, help="Requests to each server before the clock starts."
        ),
    ] = 1,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            help="Limits in milliseconds, such as ttft:500 tpot:30 e2el:4000; requests within all "
            "of them count as good."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of sampling; 0 is greedy.")] = 0.0,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos", rich_help_panel=_MORE, help="Answers do not end before they are full."
        ),
    ] = False,
    extra_body: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_MORE,
            help='JSON with further members of requests, such as {"num_speculative_tokens": 0}. '
            "Once for all servers, or once for each.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of prompts, arrivals and sampling.")] = 0,
    save_result: Annotated[
        Path | None, typer.Option(help="Write the figures to this .json file.")
    ] = None,
    save_detailed: Annotated[
        bool,
        typer.Option(
            "--save-detailed", rich_help_panel=_MORE, help="Write each answer and its times, too."
        ),
    ] = False,
    chart_file: Annotated[
        Path | None, typer.Option("--chart", help="Draw a picture to this .png, .svg or .pdf.")
    ] = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Put load on a server of OpenAI's API and measure times, throughput, goodput and acceptance.

    Requests come at --request-rate, or --max-concurrency streams ask one after the other. TTFT is
    the time to the first token, ITL that between two chunks, TPOT that for each token after the
    first. With speculation a chunk has several tokens: compare TPOT. Exit code 1 if a request
    failed.
    """
    limits = settings.parse_goodput([*(goodput or ()), *(more_limits or ())])
    if more_limits and not goodput:
        raise ValueError(f"{more_limits[0]} is not an option; limits stand behind --goodput")
    settings.check_positive("--request-rate", request_rate)
    settings.check_positive("--burstiness", burstiness)
    settings.check_temperature(temperature)
    path = settings.endpoint_of(backend, endpoint)
    files = dataset_path or []
    is_custom = settings.dataset_of(dataset_name, files) == "custom"
    custom = custom_questions(files, num_prompts, custom_output_len, seed) if is_custom else None
    check_result("--save-result", save_result)
    if chart_file is not None:
        check_chart(chart_file)
    urls = base_url or [_DEFAULT_URL]
    bodies = settings.parse_bodies(extra_body or [], len(urls))

    async def make_questions(client: Client) -> list[Question]:
        if custom is not None:
            return custom
        return await random_questions(
            num_prompts or _NUM_RANDOM,
            random_input_len,
            random_output_len,
            range_ratio=random_range_ratio,
            seed=seed,
            count_tokens=client.count_tokens,
        )

    clients: list[OpenAIClient | EngineClient] = []
    if in_process:
        if base_url or extra_body:
            raise ValueError("--in-process asks no server; leave --base-url and --extra-body out")
        name = model or DEFAULT_MODEL
        loaded = load(target_of(name, **speculation), engine)
        clients.append(
            EngineClient(
                loaded,
                name,
                is_chat=path.endswith(CHAT),
                temperature=temperature,
                ignore_eos=ignore_eos,
            )
        )
    else:
        settings.check_engine_options({**engine, **speculation})
        names = settings.server_names(urls, bodies)
        salted = settings.with_salts(urls, bodies)
        for url, body, name in zip(urls, salted, names, strict=True):
            clients.append(
                OpenAIClient(
                    url,
                    endpoint=path,
                    model=model or "",
                    api_key=os.environ.get("OPENAI_API_KEY"),
                    temperature=temperature,
                    ignore_eos=ignore_eos,
                    extra_body=body,
                    name=name,
                )
            )
    traffic = _Traffic(
        load=Load(request_rate, burstiness, max_concurrency, seed),
        num_rounds=num_rounds if len(clients) > 1 else 1,
        num_warmups=num_warmups,
        limits=limits,
    )
    raise_file_limit()
    report = asyncio.run(_measure(clients, make_questions, traffic))
    if save_result is not None:
        write_json(save_result, report.to_json(is_detailed=save_detailed))
    if chart_file is not None:
        serving_chart.draw(report, chart_file)
    if as_json:
        print(json.dumps(report.to_json(is_detailed=save_detailed), indent=2))
    else:
        out = rich.console.Console(highlight=False, soft_wrap=True)
        tables.print_serve_report(out, report)
        for file in filter(None, (save_result, chart_file)):
            out.print(f"written: {file}", markup=False)
    if report.num_failed:
        num_asked = report.num_prompts * len(report.servers)
        first = next(iter(next(s.errors for s in report.servers if s.errors)))
        raise RuntimeError(f"{report.num_failed} of {num_asked} requests failed, such as: {first}")


@dataclasses.dataclass(frozen=True)
class _Traffic:
    """The load, the questions and the limits of goodput."""

    load: Load
    num_rounds: int
    num_warmups: int
    limits: dict[str, float]


async def _measure(
    clients: Sequence[OpenAIClient | EngineClient], make_questions: QuestionMaker, traffic: _Traffic
) -> ServeReport:
    try:
        models = [
            await client.find_model() if isinstance(client, OpenAIClient) else client.name
            for client in clients
        ]
        questions = await make_questions(clients[0])
        for client in clients:
            for _ in range(traffic.num_warmups):
                _check_warm_up(client, await client.ask(_WARM_UP))
        bar = make_step_bar("Requests", len(questions) * len(clients))
        num_done = num_failed = 0

        def show(answer: Answer) -> None:
            nonlocal num_done, num_failed
            num_done += 1
            num_failed += answer.error is not None
            bar.update(num_done, f"{num_failed} failed" if num_failed else "")

        try:
            rounds = cut_into_rounds(questions, traffic.num_rounds)
            results = await run_rounds(clients, rounds, traffic.load, show)
        finally:
            bar.close()
        return make_report(results, models, traffic.load, traffic.limits)
    finally:
        for client in clients:
            await client.close()


def _check_warm_up(client: Client, answer: Answer) -> None:
    """Refuses a run where the warm-up request fails."""
    if answer.error is not None:
        status = "" if answer.status is None else f"HTTP {answer.status}: "
        raise RuntimeError(f"{client.name}: the first request failed: {status}{answer.error}")
