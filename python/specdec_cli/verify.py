"""`specdec-native verify`: asks a server whether its answers are those that it promises."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import rich.box
import rich.console
import rich.table
import typer

from specdec_cli.bench_files import check_result, write_json
from specdec_cli.command_options import (
    SPECULATION_OPTIONS,
    Group,
    Json,
    command,
    engine_options,
)
from specdec_lab.conformance.experiments import NAMES, all_questions
from specdec_lab.conformance.experiments.base import Question, Subjects
from specdec_lab.conformance.own_server import served
from specdec_lab.conformance.report import Report
from specdec_lab.conformance.rows import Row, Verdict
from specdec_lab.conformance.run import run
from specdec_lab.conformance.server import Refused, Server, meet_all
from specdec_native import __version__
from specdec_native.common.progress import make_step_bar

_DEFAULT_DRAFTS = {"method": "ngram", "num_speculative_tokens": 5}
_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.BROKEN: "bold red",
    Verdict.FALLS_SHORT: "yellow",
    Verdict.NOT_ASKED: "dim",
}
_EXIT_BROKEN, _EXIT_NOT_ASKED = 1, 2


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    add = command(app, "verify", engine=engine_options(), speculation=SPECULATION_OPTIONS)
    add(verify_command)


def verify_command(
    *,
    target: Annotated[
        str,
        typer.Argument(
            help="The URL of a server with OpenAI's API, or a model to serve here, with drafts and "
            "without."
        ),
    ],
    plain: Annotated[
        str | None,
        typer.Option(help="The URL of a server of the same model without drafts."),
    ] = None,
    plain_body: Annotated[
        str | None,
        typer.Option(
            help="JSON of members that make the server itself draft nothing in a request, such as "
            '{"num_speculative_tokens": 0}.'
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The name in requests; the server's first.")
    ] = "",
    minutes: Annotated[
        float, typer.Option(min=0, help="Rounds of new questions are asked for so long.")
    ] = 5.0,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of ordinary answers.")] = 48,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Ask only about this: {', '.join(NAMES)}. Repeatable."),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="The server promises equal answers: one that differs breaks a promise. A model "
            "that is served here does.",
        ),
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write a page to this .html file.")] = None,
    save_result: Annotated[
        Path | None, typer.Option(help="Write the report to this .json file.")
    ] = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Ask a server what public bug reports ask, and say which promises its answers keep.

    With drafts and without, alone and in a batch, streamed and whole, with a cold and a warm cache:
    texts, token ids and logprobs; limits, stop strings, penalties, seeds; sampled tokens against
    the server's own logprobs; JSON, tool calls; the speed over plain. What a server lacks is said.
    What OpenAI's API promises is kept or broken; where its API leaves servers free (equal answers,
    speed) an answer may fall short. The API key is OPENAI_API_KEY's. Exit code 1 if a promise is
    broken, 2 if nothing was asked.
    """
    names = tuple(only or NAMES)
    all_questions(Subjects(Server("http://host"), None, tokens), names)  # refuses bad names early
    check_result("--save-result", save_result)
    check_result("--page", page)
    is_url = target.startswith(("http://", "https://"))
    _check_kind(is_url, bool(plain or plain_body), {**engine, **speculation})
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        if is_url:
            drafted, without = _at_urls(target, plain, plain_body, model)
        else:
            drafted, without = _of_model(stack, target, engine, speculation)
        try:
            rows = asyncio.run(_ask(Subjects(drafted, without, tokens), names, minutes * 60))
            _promise(rows, equal_answers=exact or not is_url)
        except (ConnectionError, Refused) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(_EXIT_NOT_ASKED) from error
    report = Report(
        target=target,
        model=drafted.model,
        plain=None if without is None else plain or plain_body or "served without drafts",
        command=shlex.join(["specdec-native", *sys.argv[1:]]),
        version=__version__,
        seconds=time.monotonic() - begin,
        rows=rows,
        when=datetime.datetime.now(datetime.timezone.utc),
    )
    if save_result is not None:
        write_json(save_result, report.as_json())
    if page is not None:
        page.write_text(report.as_page(), encoding="utf-8")
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    raise typer.Exit(_exit_code(report))


def _check_kind(is_url: bool, has_plain: bool, options: Group) -> None:
    """Raises ValueError for options that belong to the other kind of target."""
    if not is_url and has_plain:
        raise ValueError("--plain and --plain-body belong to a URL; a model is served both ways")
    if is_url and options:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise ValueError(f"{named}: a server at a URL has its own; leave out, or name a model")


def _exit_code(report: Report) -> int:
    if report.num_broken:
        return _EXIT_BROKEN
    return 0 if any(row.num_cases for row in report.rows) else _EXIT_NOT_ASKED


def _promise(rows: list[Row], *, equal_answers: bool) -> None:
    """Takes equal answers for promised; speed no server can promise to a clock."""
    for row in rows:
        row.is_promised |= equal_answers and row.subject != "speed"


def _at_urls(
    target: str, plain: str | None, plain_body: str | None, model: str
) -> tuple[Server, Server | None]:
    key = os.environ.get("OPENAI_API_KEY")
    drafted = Server(target, model=model, api_key=key)
    if plain is None and plain_body is None:
        return drafted, None
    try:
        extra: Any = json.loads(plain_body or "{}")
    except ValueError as error:
        raise ValueError(f"--plain-body is not valid JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ValueError(f"--plain-body must be a JSON object, got {plain_body}")
    return drafted, Server(plain or target, model=model, api_key=key, extra_body=extra)


def _of_model(
    stack: contextlib.ExitStack, model: str, engine: Group, speculation: Group
) -> tuple[Server, Server]:
    """Two servers of this package, the first with drafts."""
    flags = _flags(engine)
    drafts = _flags(speculation or {"speculative_config": json.dumps(_DEFAULT_DRAFTS)})
    urls = [stack.enter_context(served(model, [*flags, *more])) for more in (drafts, [])]
    return Server(urls[0]), Server(urls[1])


def _flags(options: Group) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


async def _ask(subjects: Subjects, names: tuple[str, ...], seconds: float) -> list[Row]:
    servers = [server for server in (subjects.drafted, subjects.plain) if server is not None]
    try:
        await meet_all(servers)
        questions = all_questions(subjects, names)
        bar = make_step_bar("Questions", len(questions))
        places = {question: place for place, question in enumerate(questions)}

        def show(number: int, question: Question) -> None:
            bar.update(places[question], f"round {number + 1}, {question.rows[0].subject}")

        try:
            return await run(questions, seconds, show)
        finally:
            bar.close()
    finally:
        for server in servers:
            await server.close()


def _print(report: Report) -> None:
    table = rich.table.Table(box=rich.box.SIMPLE, pad_edge=False)
    for title in ("promise", "verdict", "cases", "what was seen"):
        table.add_column(title, justify="right" if title == "cases" else "left", overflow="fold")
    for subject, rows in report.subjects:
        table.add_row(f"[bold]{subject}[/bold]")
        for row in rows:
            cases = f"{row.num_broken} of {row.num_cases}" if row.num_broken else str(row.num_cases)
            table.add_row(
                f"  {row.name}",
                f"[{_STYLES[row.verdict]}]{row.verdict.value}[/]",
                cases if row.num_cases else "",
                rich.markup.escape(row.detail),
            )
    out = rich.console.Console(highlight=False)
    out.print(table)
    out.print(f"{report.target}: {report.summary}", markup=False)
