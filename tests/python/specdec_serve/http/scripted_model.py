"""A tiny model that answers requests of a server with given texts, and ends after each."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from specdec_native import SamplingParams
from specdec_serve.http.protocol.common import GenerationFields
from tiny_text_model import CHARS, END, FIRST_CHAR

Says: TypeAlias = Callable[..., None]

_SPECIAL = {"<s>": 0}


def says(
    monkeypatch: pytest.MonkeyPatch,
    special: Mapping[str, int] = _SPECIAL,
    end: int = END,
    encode: Callable[[str], list[int]] | None = None,
) -> Says:
    """A function that sets the texts, of printable ASCII characters and special tokens.

    Each request gets the next text, and the last one again. `encode` makes tokens of a text that a
    grammar has to allow: the tokenizer's own; without it, each character is one.
    """
    make = GenerationFields.sampling_params

    def ids_of(text: str) -> list[int]:
        if encode is not None:
            return encode(text)
        parts = re.findall(f"{'|'.join(map(re.escape, special))}|.", text)
        return [
            special[part] if part in special else FIRST_CHAR + CHARS.index(part) for part in parts
        ]

    def writer(ids: list[int]) -> Callable[..., npt.NDArray[np.float32]]:
        def only_these(
            output: list[int], logits: npt.NDArray[np.float32]
        ) -> npt.NDArray[np.float32]:
            logits[:] = -np.inf
            logits[[*ids, end][min(len(output), len(ids))]] = 0
            return logits

        return only_these

    def set_texts(*texts: str) -> None:
        turns = [ids_of(text) for text in texts]

        def with_text(self: GenerationFields, *args: Any, **further: Any) -> SamplingParams:
            params = make(self, *args, **further)
            params.logits_processors = [writer(turns.pop(0) if len(turns) > 1 else turns[0])]
            return params

        monkeypatch.setattr(GenerationFields, "sampling_params", with_text)

    return set_texts
