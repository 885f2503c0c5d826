"""The report of a training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from specdec_lab.training.engine_acceptance import EngineMeasurement
from specdec_lab.training.files import write_whole
from specdec_lab.training.predicted_acceptance import Acceptance


@dataclasses.dataclass(frozen=True)
class Report:
    """The head and its data, the time of the training, and the head's acceptance.

    Attributes:
        model: the target as the user named it.
        head: the directory of the head that was written.
        command: the command line, or "" from Python.
        options: the training's options.
        data: facts about the examples by name.
        training: facts about the steps by name: seconds, tokens and so on.
        acceptance: the trainer's prediction for the best weights on held-out greedy answers.
        engine: the engine's measurement of the same; None if it was not run.
        curve: (answer tokens trained on, acceptance) of each evaluation.
    """

    model: str
    head: str
    command: str
    options: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]
    acceptance: Acceptance
    engine: EngineMeasurement | None
    curve: list[tuple[int, Acceptance]]

    def to_json(self) -> dict[str, Any]:
        """The report with the rates that follow from its counts."""
        engine = self.engine
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "acceptance": _json(self.acceptance),
            "engine": None
            if engine is None
            else {
                **_json(engine.acceptance),
                "num_answers": engine.num_answers,
                "num_same_answers": engine.num_same_answers,
            },
            "curve": [{"tokens": tokens, **_json(acceptance)} for tokens, acceptance in self.curve],
        }

    def to_markdown(self) -> str:
        """The report as Markdown tables."""
        lines = [f"# {self.options['method']} head of {self.model}", ""]
        if self.command:
            lines += ["    " + self.command, ""]
        lines += self._acceptance_table()
        for name, facts in (("Data", self.data), ("Training", self.training)):
            lines += [f"## {name}", "", "| what | value |", "|---|---|"]
            lines += [f"| {key.replace('_', ' ')} | {_shown(v)} |" for key, v in facts.items()]
            lines.append("")
        lines += ["## Options", "", "| option | value |", "|---|---|"]
        lines += [f"| {key} | {_shown(value)} |" for key, value in self.options.items()]
        lines += ["", "## Acceptance over tokens trained on", ""]
        positions = range(1, len(self.acceptance.proposed) + 1)
        lines.append("| answer tokens | tokens a step |" + "".join(f" {p} |" for p in positions))
        lines.append("|---|---|" + "---|" * len(positions))
        for tokens, acceptance in self.curve:
            rates = "".join(f" {rate:.3f} |" for rate in acceptance.rates)
            lines.append(f"| {tokens:,} | {acceptance.tokens_per_step:.3f} |{rates}")
        return "\n".join(lines) + "\n"

    def write(self, directory: Path) -> None:
        """Writes report.json and report.md."""
        text = json.dumps(self.to_json(), indent=2) + "\n"
        write_whole(directory / "report.json", lambda path: path.write_text(text))
        write_whole(directory / "report.md", lambda path: path.write_text(self.to_markdown()))

    def _acceptance_table(self) -> list[str]:
        positions = range(1, len(self.acceptance.proposed) + 1)
        lines = [
            "Greedy answers of held-out prompts, chains of drafts of a fixed length. A position's "
            "share is of all steps that drafted.",
            "",
            "| by | steps | tokens a step |" + "".join(f" position {p} |" for p in positions),
            "|---|---|---|" + "---|" * len(positions),
        ]
        rows = [("trainer", self.acceptance)]
        if self.engine is not None:
            rows.append(("engine", self.engine.acceptance))
        for name, acceptance in rows:
            rates = "".join(f" {rate:.3f} |" for rate in acceptance.rates)
            lines.append(
                f"| {name} | {acceptance.num_steps} | {acceptance.tokens_per_step:.3f} |{rates}"
            )
        return [*lines, ""]


def _json(acceptance: Acceptance) -> dict[str, Any]:
    return {
        **dataclasses.asdict(acceptance),
        "rates": acceptance.rates,
        "tokens_per_step": acceptance.tokens_per_step,
    }


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return number_text(value) if isinstance(value, float) else str(value)


def number_text(value: float) -> str:
    """A number with up to three decimals; below 0.01 as in 3e-5."""
    if value == 0 or not abs(value) < 0.01:
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
