"""Trainings of heads for a small target, with data of its own, in this process or another."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiny_text_model
from specdec_lab.training.training_options import DataOptions, TrainingOptions
from specdec_lab.training.training_run import train_head

ENGINE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 32, "num_threads": 1}
TRAINING: dict[str, Any] = {
    "draft_vocab_size": 64,
    "epochs": 1.5,
    "batch_tokens": 512,
    "max_length": 64,
    "held_out": 0.2,
    "evaluations": 3,
    "learning_rate": 0.003,
    "num_threads": 1,
    "checkpoint_minutes": 0.0,  # after each step
}
DATA: dict[str, Any] = {"answer_tokens": 2000, "max_answer_tokens": 24}


def make_target(toy_target: Path, directory: Path) -> Path:
    """The target of train_heads with a tokenizer and a chat template."""
    return tiny_text_model.add_text(toy_target, directory)


def write_prompts(path: Path, count: int = 200) -> Path:
    """Users' turns in the characters that the toy language uses."""
    generator = random.Random(1)
    with path.open("w") as file:
        for _ in range(count):
            length = generator.randrange(4, 16)
            prompt = "".join(generator.choice(tiny_text_model.CHARS[1:60]) for _ in range(length))
            file.write(json.dumps({"prompt": prompt}) + "\n")
    return path


def options(**changes: Any) -> TrainingOptions:
    return TrainingOptions(**{**TRAINING, **changes})


def data(prompts: Path | None, store: Path | None = None, **changes: Any) -> DataOptions:
    given = {**DATA, **changes}
    return DataOptions(data=str(prompts or ""), data_dir=str(store or ""), **given)


def train_alone(toy_target: Path, folder: Path) -> dict[str, Path]:
    """A training by this process that nobody disturbs: its target, its directory and its store."""
    target, out = make_target(toy_target, folder / "target"), folder / "out"
    given = data(write_prompts(folder / "prompts.jsonl"))
    report = train_head(target, out, options(), given, measure=False, engine_options=ENGINE)
    assert report is not None and report.training["steps"] > 5
    return {"target": target, "out": out, "store": out / "data"}


def arguments(target: Path, out: Path, store: Path, **changes: Any) -> list[str]:
    """The arguments of `specdec-native train-head` for an existing store."""
    given = {**TRAINING, **ENGINE, **changes, "answer_tokens": 0, "data_dir": store, "out": out}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return ["train-head", str(target), *flags, "--no-measure"]


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What a process printed; it has to end well."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def digest(out: Path) -> str:
    """SHA-256 of the head that a training wrote."""
    return hashlib.sha256((out / "head/model.safetensors").read_bytes()).hexdigest()


def losses(out: Path) -> list[float]:
    """The loss of each step, from the log."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]
