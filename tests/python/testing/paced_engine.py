"""An engine whose steps take as long as a test likes."""

import threading
import time
from pathlib import Path
from typing import Any

from specdec_native import Engine
from tiny_text_model import OPTIONS

LONG = 2048  # tokens that fit


class Pace:
    """A drafter that drafts nothing: it holds up the steps that decode."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that each call takes
        self.gate = threading.Event()  # no call returns while it is not set
        self.gate.set()

    def propose(self, tokens: list[int], max_tokens: int) -> list[int]:
        self.gate.wait()
        time.sleep(self.seconds)
        return []


def paced_engine(model: Path, pace: Pace, **options: Any) -> Engine:
    """An engine for texts of LONG tokens that `pace` holds up."""
    return Engine(
        model,
        **OPTIONS
        | {
            "hf_overrides": {"max_position_embeddings": LONG},
            "max_model_len": LONG,
            "speculative_config": {
                "drafter": pace,
                "num_speculative_tokens": 1,
                "draft_length_policy": "fixed",
            },
        }
        | options,
    )
