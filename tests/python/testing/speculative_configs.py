"""The configs and custom drafters that several tests of speculation share."""

from pathlib import Path
from typing import Any

from specdec_native.speculation.speculative_config import (
    SpeculativeOptions,
    parse_speculative_config,
)

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
TABLE = "num_speculative_tokens_per_batch_size"


def find_config(name: str, revision: str | None) -> Path | None:
    """Of what is on this machine; no name is looked up."""
    return Path(name) if (Path(name) / "config.json").is_file() else None


def parse_config(config: Any) -> SpeculativeOptions:
    return parse_speculative_config(config, find_config)


def parse(**config: Any) -> SpeculativeOptions:
    return parse_config(config)


def ngram(**config: Any) -> SpeculativeOptions:
    return parse(**({"method": "ngram", "num_speculative_tokens": 4} | config))


class Repeater:
    """Drafts the last token again and again."""

    def propose(self, tokens: list[int], max_tokens: int) -> list[int]:
        return tokens[-1:] * max_tokens


def repeat(tokens: list[int], max_tokens: int) -> list[int]:
    return Repeater().propose(tokens, max_tokens)
