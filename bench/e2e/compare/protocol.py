"""The protocol between the comparison and its workers: one JSON object per line.

A worker is a process in its peer's own environment, so this module needs nothing but the standard
library. Requests have a "command": load, reset, generate or close; replies have a
"result" or an "error".
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Protocol

STORED = "stored"  # the precision of a GGUF file as it is


class PeerError(RuntimeError):
    """A peer cannot be loaded or cannot go on."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """The model and settings that a worker loads.

    Attributes:
        model: directory of a Hugging Face checkpoint with safetensors in bfloat16; a GGUF file
            where the precision is "stored".
        draft_model: the checkpoint of a smaller model with the same vocabulary; "" for none.
        precision: the target's weights: "bf16", "int8" or "int4", or "stored" for the GGUF file's.
        speculation: one of the peer's names for a way of decoding, such as "plain".
        num_threads: threads that compute.
        max_model_len: the most tokens of a prompt and its answer.
        max_batch: the most prompts of one call.
        home: where the peer is installed.
        artifacts: a folder for the peer's converted checkpoints, kept between runs.
        head: directory of a draft head, if the speculation needs one; "" for none.
        isa: the instruction set it is limited to, as in Engine's cpu_isa; "auto": no limit.
    """

    model: str
    draft_model: str
    precision: str
    speculation: str
    num_threads: int
    max_model_len: int
    max_batch: int
    home: str
    artifacts: str
    head: str = ""
    isa: str = "auto"


@dataclasses.dataclass
class Generation:
    """The result of one call.

    Attributes:
        token_ids: new tokens of each prompt.
        seconds: duration of the call, from prompts in to all tokens out.
        first_token_seconds: from the call to each prompt's first token; None if unknown.
        num_accepted: drafted tokens that were kept; None without speculation or if unknown.
    """

    token_ids: list[list[int]]
    seconds: float
    first_token_seconds: list[float] | None = None
    num_accepted: int | None = None

    @property
    def num_tokens(self) -> int:
        """All new tokens."""
        return sum(len(ids) for ids in self.token_ids)

    def to_json(self) -> dict[str, Any]:
        """For a reply."""
        return dataclasses.asdict(self)


def artifact_name(model: str, precision: str) -> str:
    """The name of a peer's converted checkpoint; it changes with the weights."""
    key = hashlib.sha256()
    for file in sorted(Path(model).glob("*.safetensors")):
        status = file.stat()
        key.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{Path(model).name}-{key.hexdigest()[:8]}-{precision}"


class Backend(Protocol):
    """A peer inside its worker."""

    def load(self, setup: Setup) -> str:
        """Loads the model of a Setup, converting the checkpoint first if needed.

        Returns the peer's version.
        """

    def reset(self, batch: int) -> None:
        """Forgets earlier prompts and answers and makes ready for calls of `batch` prompts."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        """Greedy: exactly max_tokens new tokens for each prompt, past any end of sequence."""

    def close(self) -> None:
        """Ends the processes that it started."""
