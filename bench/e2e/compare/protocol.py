"""What the comparison and its workers say to each other: one JSON object a line.

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
    """What a worker loads.

    Attributes:
        model: directory of a Hugging Face checkpoint with safetensors in bfloat16; a GGUF file
            where the precision is "stored".
        draft_model: the same of a smaller model with its vocabulary; "" for none.
        precision: of the target's weights: "bf16", "int8" or "int4", or "stored" for those of the
            GGUF file.
        speculation: one of the peer's names for a way of decoding, "plain" among them.
        num_threads: threads that compute.
        max_model_len: the most tokens of a prompt and its answer.
        max_batch: the most prompts of one call.
        home: where the peer is installed.
        artifacts: a folder for what the peer converts a checkpoint to, kept between runs.
        head: directory of a draft head, where the speculation needs one; "" for none.
        isa: the instruction set it is held to, as Engine's cpu_isa; "auto": the machine's own.
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
    """What one call generated.

    Attributes:
        token_ids: new tokens of each prompt.
        seconds: of the call, prompts in to all tokens out.
        first_token_seconds: from the call to each prompt's first token; None if it cannot say.
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
    """What a peer's own form of a checkpoint is called; another name once the weights change."""
    key = hashlib.sha256()
    for file in sorted(Path(model).glob("*.safetensors")):
        status = file.stat()
        key.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{Path(model).name}-{key.hexdigest()[:8]}-{precision}"


class Backend(Protocol):
    """A peer inside its worker."""

    def load(self, setup: Setup) -> str:
        """Loads what a Setup says, converting the checkpoint first where needed.

        Returns the peer's version.
        """

    def reset(self, batch: int) -> None:
        """Forgets earlier prompts and answers and makes ready for calls of `batch` prompts."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        """Greedy: exactly max_tokens new tokens of each prompt, past any end of sequence."""

    def close(self) -> None:
        """Ends what it started."""
