"""Facts of models that have only a configuration."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_native import _core


def facts_of(config: Mapping[str, Any], size: int = 1, **formats: str) -> _core.ModelFacts:
    """The facts of one of `size` ranks that share the model."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config))
        shares = _core.model_facts(directory, **formats)
    return next(facts for facts in shares if facts.num_ranks == size)
