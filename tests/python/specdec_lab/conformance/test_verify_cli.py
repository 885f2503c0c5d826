"""`specdec-native verify` as a command: exit codes, table, files; and its verdict on speed."""

import asyncio
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from doctored import Doctored, Fault
from server_world import serving
from specdec_lab.conformance.experiments.base import Subjects
from specdec_lab.conformance.experiments.speed import Speed
from specdec_lab.conformance.replies import Completion, Reply
from specdec_lab.conformance.rows import Verdict
from specdec_lab.conformance.server import Server
from specdec_native import Engine
from tiny_text_model import add_byte_text, lengthen

UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def long_model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthen(add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("long") / "llama"))


def test_a_model_is_served_with_drafts_and_without(long_model: Path, tmp_path: Path) -> None:
    page, file = tmp_path / "page.html", tmp_path / "report.json"
    asked = ["--only", "limits", "--only", "drafts", "--minutes", 0, "--tokens", 16]
    result = run(
        "verify", long_model, *asked, "--dtype", "float32", "--page", page, "--save-result", file
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout
    report = json.loads(file.read_text())
    assert report["target"] == str(long_model) and report["seconds"] > 0
    same = next(row for row in report["rows"] if row["name"] == "logprobs to the last bit")
    assert same["verdict"] == "holds" and same["num_cases"] > 0
    text = html.unescape(page.read_text())
    assert all(row["name"].split(":")[0] in text for row in report["rows"])


def test_a_broken_promise_is_exit_code_1(long_model: Path) -> None:
    fault = Fault(lambda body, _traffic: body.update(max_tokens=body.get("max_tokens", 1) + 1))
    with (
        Engine(long_model, dtype="float32") as engine,
        serving(engine, lambda app: Doctored(app, fault)) as world,
    ):
        asked = ["--only", "limits", "--minutes", 0, "--tokens", 8, "--json"]
        result = run("verify", world.url, *asked)
    assert result.returncode == 1
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["max_tokens is exact"]["verdict"] == "broken"
    assert rows["max_tokens is exact"]["examples"][0]["request"]["max_tokens"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((UNREACHABLE,), 2, "cannot be reached"),
        ((UNREACHABLE, "--only", "mood"), 1, "there is no subject 'mood'"),
        ((UNREACHABLE, "--plain-body", "{"), 1, "--plain-body is not valid JSON"),
        ((UNREACHABLE, "--dtype", "float32"), 1, "--dtype: a server at a URL has its own"),
        (("somewhere", "--plain", UNREACHABLE), 1, "--plain and --plain-body belong to a URL"),
        ((UNREACHABLE, "--page", "/no/such/page.html"), 1, "--page: there is no directory"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = run("verify", *arguments)
    assert result.returncode == code, result.stderr
    assert words in result.stderr


class Timed(Server):
    """Answers at once, and says that it took some seconds."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__("http://host")
        self._seconds = iter(seconds)

    async def try_ask(self, prompt: str, **fields: Any) -> Reply:
        return Reply(200, None, [Completion()], [], 10, None, next(self._seconds))


@pytest.mark.parametrize(
    ("drafted", "verdict"),
    [
        ([1.0, 1.0, 1.0, 1.1, 1.0, 1.0], Verdict.HOLDS),
        ([1.2, 1.2, 1.25, 1.2, 1.2, 1.22], Verdict.FALLS_SHORT),
        ([1.2, 1.2, 0.6, 0.6, 1.2, 1.2], Verdict.HOLDS),  # slower on average, within the noise
    ],
)
def test_speed_falls_short_where_noise_does_not_explain_it(
    drafted: list[float], verdict: Verdict
) -> None:
    question = Speed(Subjects(Timed(drafted), Timed([1.0] * 6), 24), "code")

    async def ask() -> None:
        for number in range(3):
            await question.run_round(number)

    asyncio.run(ask())
    question.conclude()
    assert [row.verdict for row in question.rows] == [verdict]
    assert "times plain (10 to " in question.rows[0].detail or verdict is not Verdict.HOLDS
