"""CTranslate2: int8 weights, no speculation, no bfloat16 on CPUs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ..programs import run_program
from ..protocol import Backend, Generation, Setup, artifact_name
from .base import Peer, pip_install

PEER = Peer(
    name="ctranslate2",
    module="ctranslate2",
    package="ctranslate2",
    speculations={"plain": 1024},
    precisions=("int8",),
    install=pip_install("torch==2.13.0 ctranslate2 transformers"),
)


class _CTranslate2:
    def __init__(self) -> None:
        self._generator: Any = None
        self._tokenizer: Any = None

    def load(self, setup: Setup) -> str:
        import ctranslate2
        import transformers

        self._generator = ctranslate2.Generator(
            str(_converted(setup)),
            device="cpu",
            compute_type="int8",
            inter_threads=1,
            intra_threads=setup.num_threads,
        )
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(setup.model)
        return str(ctranslate2.__version__)

    def reset(self, batch: int) -> None:
        del batch  # nothing outlives a call

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        tokens = [self._tokenizer.convert_ids_to_tokens(prompt) for prompt in prompts]
        first: dict[int, float] = {}

        def on_token(step: Any) -> bool:
            first.setdefault(step.batch_id, time.perf_counter())
            return False

        start = time.perf_counter()
        results = self._generator.generate_batch(
            tokens,
            max_length=max_tokens,
            min_length=max_tokens,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            callback=on_token,
        )
        seconds = time.perf_counter() - start
        return Generation(
            token_ids=[list(result.sequences_ids[0]) for result in results],
            seconds=seconds,
            first_token_seconds=[end - start for end in first.values()] or None,
        )

    def close(self) -> None:
        self._generator = None


def _converted(setup: Setup) -> Path:
    """The checkpoint in CTranslate2's format, written on first use."""
    folder = Path(setup.artifacts) / artifact_name(setup.model, setup.precision)
    if folder.is_dir():
        return folder
    part = folder.with_name(folder.name + ".part")
    converter = str(Path(sys.executable).with_name("ct2-transformers-converter"))
    command = [converter, "--model", setup.model, "--output_dir", str(part)]
    run_program([*command, "--quantization", setup.precision])
    part.rename(folder)
    return folder


def make_backend() -> Backend:
    """What the worker serves."""
    return _CTranslate2()
