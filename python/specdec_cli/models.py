"""The model that a command runs, and its drafters, from the command's options."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_cli.command_options import Group
from specdec_native.checkpoints import hub
from specdec_native.common.progress import show_bytes
from specdec_native.engine import Engine
from specdec_native.options.engine_options import check_quantization
from specdec_native.speculation.speculative_config import parse_speculative_config
from specdec_native.speculation.target_of_head import Target, find_target
from specdec_vllm.speculative_arguments import with_short_forms

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


def target_of(
    model: str,
    *,
    speculative_config: str | None = None,
    spec_method: str | None = None,
    spec_model: str | None = None,
    spec_tokens: int | None = None,
) -> Target:
    """The model with its drafters, none for plain decoding."""
    config = None
    if speculative_config is not None:
        try:
            config = json.loads(speculative_config)
        except ValueError as error:
            raise ValueError(f"--speculative-config is not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise ValueError(
                f"--speculative-config must be a JSON object, got {speculative_config}"
            )
    names = {"spec_method": "--spec-method", "spec_model": "--spec-model"}
    short = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    merged: Mapping[str, Any] | None = with_short_forms(
        config, short, {**names, "spec_tokens": "--spec-tokens"}
    )
    target = find_target(model, None, merged, hub.find_config)
    if target.speculative_config is not None:  # refuses bad options before a model is loaded
        parse_speculative_config(target.speculative_config, hub.find_config)
    return target


def resolve(target: Target, engine: Group) -> Path:
    """The model's directory, downloaded and converted where needed."""
    quantization = engine.get("quantization")
    check_quantization(quantization)
    with show_bytes() as progress:
        return target.resolve(
            functools.partial(
                hub.resolve_model,
                dtype=engine.get("dtype"),
                quantization=quantization,
                progress=progress,
            )
        )


def load(target: Target, engine: Group) -> Engine:
    """An engine with the options of the group that were given."""
    directory = resolve(target, engine)
    return Engine(directory, **engine, speculative_config=target.speculative_config)
