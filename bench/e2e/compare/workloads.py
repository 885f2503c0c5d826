"""The workloads: chat, code and edit prompts as token ids, the same for every engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_backends import TokenizerNotFoundError

DEFAULT_PROMPTS = Path(__file__).resolve().parents[1] / "prompts"
WORKLOADS = ("chat", "code", "edit")
LONG = "long"  # one prompt of many tokens and a short answer, for the time to the first token
LONG_ANSWER_TOKENS = 8
_TEXTLESS_TOKENS = 128

# Workloads of known sets, by the names of their files and of their categories.
_BY_FILE = {name: name for name in WORKLOADS} | {"humaneval": "code"}
_BY_CATEGORY = {"coding": "code"} | dict.fromkeys(
    ("writing", "roleplay", "reasoning", "math", "extraction", "stem", "humanities"), "chat"
)


class PromptsError(ValueError):
    """The prompts cannot be used."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measured situation.

    Attributes:
        workload: "chat", "code", "edit" or "long".
        batch: prompts generated from at once.
        prompts: token ids; taken one after the other where batch is 1.
        num_tokens: new tokens of each prompt.
    """

    workload: str
    batch: int
    prompts: tuple[tuple[int, ...], ...]
    num_tokens: int

    @property
    def calls(self) -> list[list[list[int]]]:
        """The prompts of each call."""
        prompts = [list(prompt) for prompt in self.prompts]
        return [[prompt] for prompt in prompts] if self.batch == 1 else [prompts]


def read_prompts(directory: Path) -> dict[str, list[str]]:
    """Prompt texts by workload, from the *.jsonl files of a directory.

    A line is an object with "prompt", or "turns" of which the first is taken, or "instruction" and
    "source". Its workload is its "workload", or follows from its "category" or the file's name
    (chat, code, edit, humaneval); other lines are left out.
    """
    texts: dict[str, list[str]] = {name: [] for name in WORKLOADS}
    files = sorted(directory.glob("*.jsonl"))
    if not files:
        raise PromptsError(f"there are no *.jsonl files in {directory}; give another --prompts")
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            entry = json.loads(line)
            workload = entry.get(
                "workload", _BY_CATEGORY.get(entry.get("category"), _BY_FILE.get(file.stem))
            )
            if workload in texts:
                texts[workload].append(_text(entry, f"{file}:{number}"))
    return texts


def _text(entry: Mapping[str, Any], where: str) -> str:
    if "prompt" in entry:
        return str(entry["prompt"])
    if entry.get("turns"):
        return str(entry["turns"][0])
    if "instruction" in entry and "source" in entry:
        return f"{entry['instruction']}\n```\n{entry['source']}\n```\n"
    raise PromptsError(f'{where}: needs "prompt", "turns", or "instruction" and "source"')


def encode(texts: Sequence[str], model: Path) -> list[list[int]]:
    """Token ids of user turns in the model's chat format.

    A checkpoint without a tokenizer gets the first bytes of each text, enough to try things out.
    """
    try:
        tokenizer = Tokenizer.from_directory(model)
    except TokenizerNotFoundError:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        cut = (text.encode()[:_TEXTLESS_TOKENS] for text in texts)
        return [[byte % config["vocab_size"] for byte in encoded] for encoded in cut]
    if tokenizer.chat_template is None:
        return tokenizer.encode_batch(list(texts))
    turns = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in texts]
    return tokenizer.encode_batch(turns, add_special_tokens=False)


def pick(prompts: Sequence[list[int]], count: int, max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """`count` of the prompts that have at most `max_tokens`, spread over all of them.

    Fewer prompts than asked for are taken again from the first.
    """
    fitting = [tuple(prompt) for prompt in prompts if len(prompt) <= max_tokens]
    if not fitting:
        raise PromptsError(f"no prompt has at most {max_tokens} tokens; raise --max-prompt-tokens")
    if count <= len(fitting):
        return tuple(fitting[i * len(fitting) // count] for i in range(count))
    return tuple(fitting[i % len(fitting)] for i in range(count))


def long_prompt(prompts: Sequence[list[int]], num_tokens: int) -> tuple[int, ...]:
    """A prompt of exactly `num_tokens`, of as many of the given ones as it takes."""
    ids: list[int] = []
    while len(ids) < num_tokens:
        for prompt in prompts:
            ids += prompt
    return tuple(ids[:num_tokens])


def make_cells(
    texts: Mapping[str, Sequence[str]],
    model: Path,
    *,
    workloads: Sequence[str],
    batches: Sequence[int],
    num_prompts: int,
    num_tokens: int,
    max_prompt_tokens: int,
    long_prompt_tokens: int,
) -> list[Cell]:
    """Every workload at every batch size, `num_prompts` prompts at batch 1, and the long prompt."""
    cells = []
    for workload in workloads:
        if workload == LONG:
            ids = encode([text for name in WORKLOADS for text in texts[name]], model)
            prompt = long_prompt(ids, long_prompt_tokens)
            cells.append(Cell(LONG, 1, (prompt,), LONG_ANSWER_TOKENS))
            continue
        ids = encode(texts[workload], model)
        for batch in batches:
            count = num_prompts if batch == 1 else batch
            cells.append(Cell(workload, batch, pick(ids, count, max_prompt_tokens), num_tokens))
    return cells
