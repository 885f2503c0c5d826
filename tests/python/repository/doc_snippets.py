"""Runs the code of README and docs/*.md, in which tiny models stand in for the ones named there.

A fence is `sh`, `python`, `json`, `yaml`, `c`, `cpp`, `cmake` or `go`. Attributes in braces after
that word say what else is to be known:

    data-skip="reason"  the code is not run here
    data-file="name"    the text is written to a file, which later code reads
    data-fails="text"   the command must fail and say this

`text` is for what is no code. The code of a page runs in order, in one folder and one Python
namespace. A command that starts `specdec-native serve` leaves the server running until the page
ends or another one starts; its port is a free one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from free_port import free_port
from specdec_native.speculation.speculative_config import parse_speculative_config

ROOT = Path(__file__).parents[3]
LANGUAGES = ("sh", "python", "json", "yaml", "c", "cpp", "cmake", "go", "text")
BUILT = ("examples/c", "examples/cpp")
_FENCE = re.compile(r"^(?P<marks>```+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=marks)[ ]*$", re.M | re.S)
_ATTRIBUTES = re.compile(r'([\w-]+)="([^"]*)"')
_INCLUDED = re.compile(r'--8<-- "([^":]+)"\n')
_SERVER_PORT = 8000
_START_SECONDS = 120
_COMMAND_SECONDS = 300


class SnippetError(AssertionError):
    """A fence that does not do what the page says."""


@dataclasses.dataclass(frozen=True)
class Fence:
    """A block of code in a page."""

    page: str
    line: int
    language: str
    attributes: dict[str, str]
    text: str

    @property
    def location(self) -> str:
        return f"{self.page}:{self.line}"

    def check(self) -> None:
        """Raises SnippetError for a fence that nobody could run, or that gives no reason."""
        known = {"data-skip", "data-file", "data-fails"}
        if self.language not in LANGUAGES:
            raise SnippetError(
                f"{self.location}: the fence is {self.language!r}, not of {LANGUAGES}"
            )
        if not set(self.attributes) <= known:
            raise SnippetError(f"{self.location}: a fence has the attributes {sorted(known)}")
        if len(self.attributes.get("data-skip", "a reason").split()) < 2:
            raise SnippetError(f"{self.location}: data-skip has to say why")

    @property
    def is_skipped(self) -> bool:
        return "data-skip" in self.attributes

    @property
    def is_server(self) -> bool:
        return self.language == "sh" and self.text.startswith("specdec-native serve")


def fences(path: Path) -> list[Fence]:
    """The fences of a page, from top to bottom."""
    text = path.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, _, attributes = match["info"].strip().partition(" ")
        found.append(
            Fence(
                page=path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name,
                line=text.count("\n", 0, match.start()) + 1,
                language=language,
                attributes=dict(_ATTRIBUTES.findall(attributes)),
                text=match["text"],
            )
        )
    return found


class Runner:
    """Runs fences in a folder.

    Args:
        folder: where commands run, which is also their home.
        words: what stands in for placeholders such as MODEL, in code of every language.
        shorter: options added to a command of specdec-native, to run it in little time.
        environment: variables of the commands.
    """

    def __init__(
        self,
        folder: Path,
        words: dict[str, str],
        shorter: dict[str, list[str]],
        environment: dict[str, str],
    ) -> None:
        self.folder = folder
        self.words = words
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        programs = folder / "bin"
        programs.mkdir()
        _write_program(programs / "specdec-native", _command_line(shorter))
        python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        _write_program(programs / "python", python)
        self._environment = {
            **os.environ,
            **environment,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_server()
        self.namespace.clear()  # engines end with the names that hold them

    def run(self, fence: Fence) -> None:
        """Raises SnippetError, or what the code raises."""
        fence.check()
        text = self._with_stand_ins(fence.text)
        if fence.is_skipped:
            if fence.language == "sh":
                self._shell(fence, text, "-n")
            elif fence.language == "python":
                compile(text, fence.location, "exec")
            return
        if "data-file" in fence.attributes:
            (self.folder / fence.attributes["data-file"]).write_text(text)
        if fence.language == "sh":
            self._start_server(fence, text) if fence.is_server else self._shell(fence, text)
        elif fence.language == "python":
            exec(
                compile("\n" * fence.line + text, fence.page, "exec", dont_inherit=True),
                self.namespace,
            )
        elif fence.language == "json":
            value = json.loads(text)
            if isinstance(value, dict) and ({"method", "drafters"} & set(value)):
                parse_speculative_config(value, lambda *_: None)
        elif fence.language == "yaml":
            yaml.safe_load(text)
        elif fence.language in ("c", "cpp", "cmake"):
            included = _INCLUDED.fullmatch(text)
            if not included or Path(included[1]).parent.as_posix() not in BUILT:
                raise SnippetError(f"{fence.location}: include a file of {' or '.join(BUILT)}")
            assert (ROOT / included[1]).is_file()

    def _with_stand_ins(self, text: str) -> str:
        for word, value in self.words.items():
            text = re.sub(rf"\b{word}\b", value.replace("\\", "\\\\"), text)
        return re.sub(rf"\blocalhost:{_SERVER_PORT}\b", f"127.0.0.1:{self.port}", text)

    def _shell(self, fence: Fence, text: str, *options: str) -> None:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", *options, "-c", text],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        said = result.stdout + result.stderr
        failure = fence.attributes.get("data-fails")
        if (result.returncode != 0) != (failure is not None and not options):
            raise SnippetError(f"{fence.location}: exit status {result.returncode}\n{said}")
        if failure is not None and not options and failure not in said:
            raise SnippetError(f"{fence.location}: does not say {failure!r}\n{said}")

    def _start_server(self, fence: Fence, text: str) -> None:
        self._stop_server()
        text = re.sub(rf" --(port {_SERVER_PORT}|host 0\.0\.0\.0)\b", "", text.rstrip())
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                ["bash", "-euc", f"{text} --host 127.0.0.1 --port {self.port}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise SnippetError(f"{fence.location}: no server\n{log.read_text()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health").is_success
        except httpx.TransportError:
            return False

    def _stop_server(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        if server.poll() is not None:
            return
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            raise SnippetError("a server does not end on SIGTERM") from None


def _command_line(shorter: dict[str, list[str]]) -> str:
    """A shell script that stands for specdec-native."""
    cases = "".join(
        f'  {name}) set -- "$@" {shlex.join(options)} ;;\n' for name, options in shorter.items()
    )
    return f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexec "{sys.executable}" -m specdec_native "$@"\n'


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def links(path: Path) -> Iterator[str]:
    """What a page's links and images lead to, code aside."""
    text = _FENCE.sub("", path.read_text())
    text = re.sub(r"`[^`\n]*`", lambda match: "x" * len(match[0]), text)
    for match in re.finditer(r"\]\(\s*([^)\s]+)\s*\)", text):
        yield match[1]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = _FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }
