"""vLLM's names and how this package treats each. Most tables of vllm_names.json go by reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TABLES: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("vllm_names.json").read_text(encoding="utf-8")
)


def by_name(names_by_reason: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The reason of each name."""
    return {name: reason for reason, names in names_by_reason.items() for name in names}
