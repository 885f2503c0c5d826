"""Writes the tables of docs/verify.md: what `specdec-native verify` says of servers.

    python scripts/verify_table.py NAME REPORT.json ...

puts reports that `verify --save-result` wrote (one, or one per --only) into
bench/results/cpu/verify/NAME.json; NAME is a server of servers.json there, which has by hand what
no report knows: versions, commands, and what the servers' own documentation promises.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "cpu" / "verify"
_BETWEEN = re.compile(r"(<!-- servers:.*?-->\n).*?(<!-- end of servers -->)", re.S)
_MOST_EXAMPLES = 1
_URL = re.compile(r"http://[^/:\s]+:\d+")
_WORDS = ("$DRAFTED", "$PLAIN")
_ONLY = re.compile(r" --only (\S+)")
_FILES = re.compile(r" --(?:save-result|page) \S+")
_VERDICTS = ("holds", "broken", "falls short", "could not be asked")

Report = dict[str, Any]
Server = dict[str, Any]


def write_verify(text: str) -> str:
    """docs/verify.md with the tables between the marks."""
    servers: dict[str, Server] = json.loads((RESULTS / "servers.json").read_text())
    reports: dict[str, Report] = {
        name: json.loads((RESULTS / f"{name}.json").read_text()) for name in servers
    }
    parts = [
        "\n".join(_summary(servers, reports)),
        "\n".join(_rows(servers, reports)),
        "\n".join(_examples(servers, reports)),
        "\n".join(_notes(servers)),
        "\n".join(_promises(servers)),
        "\n".join(_commands(servers, reports)),
    ]
    tables = "\n\n".join(parts)
    text, count = _BETWEEN.subn(lambda match: f"{match[1]}\n{tables}\n\n{match[2]}", text)
    if count != 1:
        raise ValueError("docs/verify.md has no place for the tables")
    return text


def _summary(servers: dict[str, Server], reports: dict[str, Report]) -> list[str]:
    lines = [
        "| server | what was served | date | " + " | ".join(_VERDICTS) + " |",
        "|---|---|---|" + "---:|" * len(_VERDICTS),
    ]
    for name, server in servers.items():
        found = [row["verdict"] for row in reports[name]["rows"]]
        counts = [str(found.count(verdict)) for verdict in _VERDICTS]
        date = reports[name]["when"][:10]
        lines.append("| " + " | ".join([server["name"], server["served"], date, *counts]) + " |")
    return lines


def _rows(servers: dict[str, Server], reports: dict[str, Report]) -> list[str]:
    cells = {
        name: {(row["subject"], row["name"]): _cell(row) for row in reports[name]["rows"]}
        for name in servers
    }
    names = [server["short"] for server in servers.values()]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    keys = list(dict.fromkeys(key for found in cells.values() for key in found))
    subjects = list(dict.fromkeys(subject for subject, _ in keys))
    for subject in subjects:
        lines.append(f"| **{subject}** |" + " |" * len(names))
        for key in (key for key in keys if key[0] == subject):
            found = [cells[name].get(key, "") for name in servers]
            lines.append("| " + " | ".join([key[1], *found]) + " |")
    return lines


def _cell(row: dict[str, Any]) -> str:
    verdict, cases, broken = row["verdict"], row["num_cases"], row["num_broken"]
    if verdict == "could not be asked":
        return "-"
    if not broken:
        return "holds"
    return f"{'**broken**' if verdict == 'broken' else verdict}, {broken} of {cases}"


def _examples(servers: dict[str, Server], reports: dict[str, Report]) -> list[str]:
    lines = ["What was seen where a promise is broken, the first case of each:", ""]
    for name, server in servers.items():
        lines += [
            f"- {server['short']}, {row['subject']}, {row['name']}: {_escaped(row['detail'])}"
            for row in reports[name]["rows"]
            if row["verdict"] == "broken"
        ]
    return lines


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text.replace("\n", " "))


def _notes(servers: dict[str, Server]) -> list[str]:
    lines = ["What was seen by hand:", ""]
    for server in servers.values():
        lines += [f"- {server['short']}: {note}" for note in server["notes"]]
    return lines


def _promises(servers: dict[str, Server]) -> list[str]:
    lines = ["| server | what its own documentation says | source |", "|---|---|---|"]
    for server in servers.values():
        for promise in server["promises"]:
            cells = [server["short"], promise["says"], promise["source"]]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _commands(servers: dict[str, Server], reports: dict[str, Report]) -> list[str]:
    lines = ["The commands:", "", "```text"]
    for name, server in servers.items():
        lines += [f"# {server['name']}", *server["commands"], reports[name]["command"], ""]
    lines[-1] = "```"
    return lines


def pack(name: str, files: Sequence[str]) -> None:
    """Joins the reports of one server, without what is long."""
    reports = [json.loads(Path(file).read_text()) for file in files]
    rows = [row for report in reports for row in report["rows"]]
    for row in rows:
        row["examples"] = row["examples"][:_MOST_EXAMPLES]
    packed = {
        "model": reports[0]["model"],
        "command": _joined([report["command"] for report in reports]),
        "version": reports[0]["version"],
        "when": reports[-1]["when"],
        "seconds": round(sum(report["seconds"] for report in reports), 1),
        "rows": rows,
    }
    text = json.dumps(packed, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text)


def _joined(commands: Sequence[str]) -> str:
    """The command that asks all that these ask: without a host, and without the files written."""
    subjects = dict.fromkeys(word for command in commands for word in _ONLY.findall(command))
    command = _FILES.sub("", _ONLY.sub("", commands[0]))
    for url, word in zip(dict.fromkeys(_URL.findall(command)), _WORDS, strict=False):
        command = command.replace(url, word)
    return command + "".join(f" --only {subject}" for subject in subjects)


if __name__ == "__main__":
    pack(sys.argv[1], sys.argv[2:])
