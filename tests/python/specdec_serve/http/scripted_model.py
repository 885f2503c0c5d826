"""A tiny model that answers requests of a server with a given text, and then ends."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from specdec_native import SamplingParams
from specdec_serve.http.protocol.common import GenerationFields
from tiny_text_model import CHARS, END, FIRST_CHAR

Says: TypeAlias = Callable[[str], None]

_SPECIAL = {"<s>": 0}


def says(
    monkeypatch: pytest.MonkeyPatch, special: Mapping[str, int] = _SPECIAL, end: int = END
) -> Says:
    """A function that sets the text, of printable ASCII characters and special tokens."""
    make = GenerationFields.sampling_params

    def set_text(text: str) -> None:
        ids: list[int] = []
        for part in re.findall(f"{'|'.join(map(re.escape, special))}|.", text):
            ids.append(special[part] if part in special else FIRST_CHAR + CHARS.index(part))

        def only_this(
            output: list[int], logits: npt.NDArray[np.float32]
        ) -> npt.NDArray[np.float32]:
            logits[:] = -np.inf
            logits[[*ids, end][min(len(output), len(ids))]] = 0
            return logits

        def with_text(self: GenerationFields, *args: Any, **further: Any) -> SamplingParams:
            params = make(self, *args, **further)
            params.logits_processors = [only_this]
            return params

        monkeypatch.setattr(GenerationFields, "sampling_params", with_text)

    return set_text
