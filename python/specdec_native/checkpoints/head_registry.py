"""The draft heads that come with this package, by name.

A head's files are in heads/NAME beside this folder: config.json and model.safetensors without the
matrices that are rows of its target's LM head: training did not change these.
`head_files` puts these back. `scripts/pack_head.py` makes both the files and the row below.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[1] / "heads"


@dataclass(frozen=True)
class RegistryHead:
    """One known head.

    Attributes:
        name: by which a user asks for it.
        method: the speculation method.
        target: the name of the known model that it was trained for.
        description: what it is, for a list.
        sha256: the digest of the shipped model.safetensors.
        borrowed: names of the tensors that are rows of the target's LM head.
        rows_sha256: the digest of these rows in bfloat16, as they were in training.
    """

    name: str
    method: str
    target: str
    description: str
    sha256: str
    borrowed: tuple[str, ...]
    rows_sha256: str

    @property
    def directory(self) -> Path:
        """The folder of the shipped files. Its config.json describes the complete head."""
        return DIRECTORY / self.name


HEADS = (
    RegistryHead(
        name="SmolLM2-135M-Instruct-eagle3",
        method="eagle3",
        target="SmolLM2-135M-Instruct",
        description="EAGLE-3, draft vocabulary of 8,192; 1.0 million answer tokens",
        sha256="5adc7cf087c10846f7d50ddfb5eb54480929dd7cd49f044921fc33752bc80b0a",
        borrowed=("lm_head.weight",),
        rows_sha256="c7aa7096574b99b4eebd62873b329e6c6833136edef36d6162a34ca2e84d019a",
    ),
)


def find_head(name: str) -> RegistryHead | None:
    """The head called `name`, in any case."""
    return next((head for head in HEADS if head.name.lower() == name.lower()), None)


def heads_of(model: str) -> list[RegistryHead]:
    """The heads of a known model, by its name."""
    return [head for head in HEADS if head.target == model]


def known_heads() -> list[str]:
    """The names of all heads."""
    return [head.name for head in HEADS]
