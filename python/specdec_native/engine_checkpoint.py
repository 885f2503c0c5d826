"""Finds what an engine loads: its model's checkpoint, its tokenizer and its drafters."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.hf_config import overrides_json
from specdec_native.common.progress import show_bytes
from specdec_native.options.engine_arguments import EngineArguments
from specdec_native.requests.request_builder import CheckpointText, load_text
from specdec_native.speculation.auto_drafters import (
    asks_for_auto,
    brought_drafters,
    name_drafters,
    text_of_drafters,
)
from specdec_native.speculation.draft_vocabulary import check_vocabularies
from specdec_native.speculation.likely_tokens import DraftTarget
from specdec_native.speculation.speculative_config import parse_speculative_config
from specdec_native.speculation.target_of_head import find_target

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EngineCheckpoint:
    """The files that were found, and the tokenizer that was loaded.

    Attributes:
        directory: the checkpoint's folder on this machine.
        text: its tokenizer, or why there is none.
        speculative_config: the caller's; if a draft head was given as the model, with that head;
            instead of "auto" with a list of drafters.
    """

    directory: Path
    text: CheckpointText
    speculative_config: Mapping[str, Any] | None


def load_checkpoint(
    config: _core.EngineConfig,
    model: str | os.PathLike[str],
    arguments: EngineArguments,
) -> EngineCheckpoint:
    """Finds the checkpoints of a model and its drafters and names them in `config`.

    Weights are loaded later, by the core.
    """
    target = find_target(model, arguments.revision, arguments.speculative_config, hub.find_config)
    speculative_config = target.speculative_config
    speculative = (
        None
        if speculative_config is None
        else parse_speculative_config(speculative_config, hub.find_config)
    )
    with show_bytes() as progress:
        resolve = functools.partial(
            hub.resolve_model,
            dtype=config.dtype,
            weights=config.load_format != "dummy",
            progress=progress,
        )
        directory = target.resolve(functools.partial(resolve, quantization=config.quantization))
        if asks_for_auto(speculative_config):
            brought = brought_drafters(
                os.fspath(target.model), directory, has_weights=config.load_format != "dummy"
            )
            speculative_config = name_drafters(speculative_config, hub.find_config, brought)
            names = text_of_drafters(speculative_config["drafters"])
            logger.info('speculative_config "auto": %s', names)
            speculative = parse_speculative_config(speculative_config, hub.find_config)
        text = CheckpointText(None, "skip_tokenizer_init is set")
        if not arguments.skip_tokenizer_init:
            text = load_text(
                directory,
                arguments.tokenizer,
                arguments.chat_template,
                arguments.trust_remote_code,
            )
        if speculative is not None:
            config.speculative = speculative.to_core(
                lambda name, draft_revision, draft_quantization: resolve(
                    name, revision=draft_revision, quantization=draft_quantization
                ),
                lambda read: text.need_tokenizer("a text in speculative_config").encode(
                    read, add_special_tokens=False
                ),
                DraftTarget(
                    directory,
                    config.dtype,
                    config.quantization,
                    has_weights=config.load_format != "dummy",
                    num_tokens=None if text.tokenizer is None else len(text.tokenizer),
                    special_ids=() if text.tokenizer is None else text.tokenizer.all_special_ids,
                    vocabulary=None if text.tokenizer is None else text.tokenizer.get_vocab(),
                ),
            )
            drafts = speculative.drafts(config.speculative)
            check_vocabularies(drafts, directory, text.tokenizer)
    config.model = str(directory)
    if arguments.hf_overrides is not None:
        config.hf_overrides = overrides_json(directory, arguments.hf_overrides)
    return EngineCheckpoint(directory, text, speculative_config)
